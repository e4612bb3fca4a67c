#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "config/config.hpp"

namespace llmtrain {

/// Values of a job that the data, the device and Slurm decide after its deck is loaded, where the deck leaves them
/// open.
struct RunFacts {
  /// Those of the deck; nothing is decided yet.
  explicit RunFacts(const Config& deck);

  int64_t vocabulary;                ///< model.vocab_size; 0: the tokenizer is not known yet
  PrecisionConfig::Compute compute;  ///< precision.compute
  int64_t sequence_length;           ///< batch.sequence_length, tokens
  bool overwrite;                    ///< run.overwrite
  std::vector<std::string> labels;   ///< classify.labels; none: those of the rows are not known yet
  std::vector<std::string> notes;    ///< for the user, after those of the deck

  /// Adds a note unless it is empty.
  void add_note(std::string note);
};

/// The deck with these values. The resolved deck shows those that the deck left open as automatic.
Config with_facts(Config deck, const RunFacts& facts);

}  // namespace llmtrain
