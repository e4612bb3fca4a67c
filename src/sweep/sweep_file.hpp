#pragma once
// A sweep: a deck in which some keys have several values, as lists or ranges in braces.
//
//   [sweep]
//   method = random
//   runs = 20
//   [optimizer]
//   name = {adamw, muon}
//   momentum = {0.9, 0.95} if optimizer.name = muon
//   [schedule]
//   learning_rate = {1e-4 .. 1e-2 log}
//   [model]
//   d_model = {64, 128, 256}
//   n_heads = {2, 4, 8} with model.d_model

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/deck/deck.hpp"

namespace llmtrain {

enum class SweepMethod : uint8_t {
  grid,   ///< every combination of the values
  list,   ///< the first values of all keys, the second ones, and so on
  random  ///< values drawn by the seed
};
template <>
inline constexpr auto enum_names<SweepMethod> = name_list("grid", "list", "random");

/// [sweep]
struct SweepConfig {
  SweepMethod method = SweepMethod::grid;
  int64_t runs = 0;
  int64_t seed = 42;
  std::string metric = "validation_loss";

  void visit(DeckKeys& keys);
};

/// Numbers between two ends, both included.
struct SweepRange {
  double low = 0, high = 0;
  bool logarithmic = false;
  bool whole = false;  ///< integers alone
  int64_t count = 0;   ///< of equally spaced numbers, for a grid or a list; 0: not given
};

/// The number at this share of the way from the first end to the second, as a deck writes it.
std::string value_at(const SweepRange& range, double share);

/// A key with several values.
struct SweepChoice {
  std::string key;  ///< section.key
  int line = 0;
  std::vector<std::string> values;  ///< as the deck writes them; empty: a range without a count
  std::optional<SweepRange> range;
  std::string condition, condition_value;  ///< key and value that it needs; empty: none
  std::string follows;                     ///< key whose value has the same number; empty: none
};

struct SweepFile {
  std::string name;  ///< path, for messages
  SweepConfig config;
  RawDeck deck;  ///< without [sweep]; choices have their text in it
  std::vector<SweepChoice> choices;
};

/// Throws UserError: missing_input, or deck with file:line for what is wrong.
SweepFile read_sweep(const std::string& path);

/// A run of a sweep.
struct SweepRun {
  std::string name;                                ///< "001"
  std::vector<std::optional<std::string>> values;  ///< of each choice; empty: its condition does not hold
  std::string deck;                                ///< text
};

/// The runs of a sweep, whose results will be in folders of `output` with their names. Throws UserError(deck) if there
/// are none, or too many.
std::vector<SweepRun> plan_sweep(const SweepFile& sweep, const std::string& output);

/// "schedule.learning_rate = 0.001, model.d_model = 64"
std::string values_text(const SweepFile& sweep, const SweepRun& run);

}  // namespace llmtrain
