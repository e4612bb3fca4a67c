#pragma once
// Runs of one small deck, in a folder of their own.

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "decks/program.hpp"

namespace llmtrain::test {

/// Lines of about the same length, some of them equal.
std::string text_of_lines(int lines);
/// Documents of different lengths, blank lines between them.
std::string text_of_documents(int documents);
/// "step-00000012"
std::string step_name(int64_t step);

/// A deck of a tiny model on text_of_lines(60), for RunFolder.
struct TinyDeck {
  int steps;
  std::string model;     ///< more lines of [model]
  std::string sections;  ///< the other sections
  std::string text() const;
};

/// A deck of a small model on text_of_documents(), for RunFolder, with dropout, accumulation, a short last step of an
/// epoch and a warm-up.
struct DocumentsDeck {
  int steps;
  int layers;
  int sequences;         ///< of a step
  std::string sections;  ///< the other sections
  int channels = 36;
  int length = 96;
  std::string text() const;
};

/// Environment of llmtrain that makes every step take this many milliseconds, so that events happen during a run on a
/// fast machine too. Empty if the library for it cannot be used: with sanitizers, which are slow anyway.
std::string slow_steps(int milliseconds);

class RunFolder : public ::testing::Test {
 protected:
  /// Writes text.txt and deck.ini. TEXT and FOLDER in the deck are replaced by that file and this folder.
  RunFolder(const std::string& text, std::string deck);

  /// `faults`: for the program of faulty/main.cpp, which then replaces llmtrain.
  Outcome start(const std::string& name, int ranks, const std::vector<std::string>& overrides,
                const std::string& faults = "", int threads = 1) const;
  std::vector<std::string> arguments(const std::string& name, const std::vector<std::string>& overrides) const;
  /// Command line for shell().
  std::string command(const std::string& name, int ranks, const std::string& overrides = "") const;
  /// Runs in the background; once `condition` holds, or after a long time, runs `action`; ends with the job's exit
  /// code. Both are commands, which find the job in $job and its folder in $run; `pid N` prints the process of rank N.
  Outcome start_and(const std::string& name, int ranks, const std::string& condition, const std::string& action,
                    const std::string& overrides = "", const std::string& environment = "") const;
  /// A condition: the ledger has this many lines.
  static std::string lines_in_ledger(int lines);

  std::string ledger(const std::string& name) const { return read_file(folder / (name + "/ledger.jsonl")); }
  std::filesystem::path checkpoint(const std::string& name, int64_t step) const {
    return folder / (name + "/checkpoints/" + step_name(step));
  }
  /// Target of a link among the checkpoints; empty if it does not exist.
  std::string linked(const std::string& name, const std::string& link) const;
  /// Copies run `from` as a job leaves it that is killed before it publishes the checkpoint after `step`.
  void cut_off(const std::string& from, const std::string& to, int64_t step) const;

  TemporaryFolder folder;
};

}  // namespace llmtrain::test
