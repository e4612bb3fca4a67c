#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "core/deck/named_enum.hpp"

namespace llmtrain {

class DeckKeys;
class DeckLoader;

/// [curriculum]: what a step learns from, as it grows from easy to hard.
struct CurriculumConfig {
  enum class Strategy : uint8_t {
    none,
    length,      ///< samples are cut to the current length
    difficulty,  ///< samples are drawn from the currently easy ones
  };
  /// Property that makes a sample hard.
  struct Difficulty {
    enum class Kind : uint8_t { rarity, length, loss, column };
    Kind kind = Kind::rarity;
    std::string column = {};  ///< of the rows; of Kind::column
  };
  /// Meaning of the value: the easiest percentage of the samples, or the highest difficulty.
  enum class Scale : uint8_t { percent, values };
  enum class Shape : uint8_t { linear, root, steps };
  /// A value up to a step.
  struct Level {
    double value;
    int64_t last_step;  ///< counted from 1
  };

  Strategy strategy = Strategy::none;
  Difficulty difficulty;
  Scale scale = Scale::percent;
  double start = 0, end = 0;  ///< tokens, percent of the samples, or difficulties
  int64_t steps = 0;
  Shape shape = Shape::linear;
  int64_t root_degree = 2;
  double multiple_of = 8;
  std::vector<std::string> levels;  ///< VALUE:STEP, the last one VALUE; of Shape::steps

  bool active() const { return strategy != Strategy::none; }
  /// True if samples are drawn by this difficulty.
  bool draws_by(Difficulty::Kind kind) const { return strategy == Strategy::difficulty && difficulty.kind == kind; }
  /// The value is a difficulty, which need not be whole.
  bool has_values() const { return strategy == Strategy::difficulty && scale == Scale::values; }
  /// The value of a step, counted from 1: DeepSpeed's fixed_linear, fixed_root and fixed_discrete.
  double value(int64_t step) const;
  std::vector<Level> parsed_levels() const;

  void visit(DeckKeys& keys);
  void resolve(DeckLoader& deck, int64_t sequence_length);

 private:
  void mark_unused(DeckLoader& deck) const;
  void resolve_levels(DeckLoader& deck, double most);
  void resolve_defaults(DeckLoader& deck, double most);
};

template <>
inline constexpr auto enum_names<CurriculumConfig::Strategy> = name_list("none", "length", "difficulty");
template <>
inline constexpr auto enum_names<CurriculumConfig::Difficulty::Kind> = name_list("rarity", "length", "loss", "column");
template <>
inline constexpr auto enum_names<CurriculumConfig::Scale> = name_list("percent", "values");
template <>
inline constexpr auto enum_names<CurriculumConfig::Shape> = name_list("linear", "root", "steps");

}  // namespace llmtrain
