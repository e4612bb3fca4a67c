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
    difficulty,  ///< samples are drawn from the current percentage of easy ones
  };
  enum class Difficulty : uint8_t { rarity, length };
  enum class Shape : uint8_t { linear, root, steps };
  /// A value up to a step.
  struct Level {
    int64_t value;
    int64_t last_step;  ///< counted from 1
  };

  Strategy strategy = Strategy::none;
  Difficulty difficulty = Difficulty::rarity;
  int64_t start = 0, end = 0;  ///< tokens, or percent of the samples; 0 before resolve(): not given
  int64_t steps = 0;
  Shape shape = Shape::linear;
  int64_t root_degree = 2;
  int64_t multiple_of = 8;
  std::vector<std::string> levels;  ///< VALUE:STEP, the last one VALUE; of Shape::steps

  bool active() const { return strategy != Strategy::none; }
  /// The value of a step, counted from 1: DeepSpeed's fixed_linear, fixed_root and fixed_discrete.
  int64_t value(int64_t step) const;
  std::vector<Level> parsed_levels() const;

  void visit(DeckKeys& keys);
  void resolve(DeckLoader& deck, int64_t sequence_length);

 private:
  void resolve_levels(DeckLoader& deck, int64_t most);
};

template <>
inline constexpr auto enum_names<CurriculumConfig::Strategy> = name_list("none", "length", "difficulty");
template <>
inline constexpr auto enum_names<CurriculumConfig::Difficulty> = name_list("rarity", "length");
template <>
inline constexpr auto enum_names<CurriculumConfig::Shape> = name_list("linear", "root", "steps");

}  // namespace llmtrain
