#pragma once
// The file of results of run.task = generate: rows in order, whoever made them and when. A file in the run's folder has
// what they depend on and a hash of each, so that a resumed run finds rows that are not its own.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "metrics/append_file.hpp"

namespace llmtrain {

/// Hashes of what rows depend on beside the deck.
struct GenerationSources {
  std::string prompts;  ///< rows and tokens of all prompts, in order
  std::string model;    ///< weights, tokenizer, chat templates, stop tokens
};

inline constexpr const char* generation_hashes_name = "generations.hashes";

class GenerationOutput {
 public:
  /// Throws UserError(cannot_create) if the file exists.
  static void require_new(const std::string& path);
  /// Reads the rows of an earlier job, and compares them with their hashes in the file `hashes`. Unless the run
  /// `resumes` the file of results must not exist, or `overwrite` removes it. Throws UserError(cannot_create) if the
  /// sources or a row are others than those of the run, UserError(io).
  GenerationOutput(const std::string& path, const std::string& hashes, const GenerationSources& sources, bool resumes,
                   bool overwrite);
  /// Removes a line that a killed job left unfinished, and opens the files; add() and write() follow.
  void start();

  int64_t rows() const { return rows_; }  ///< that are in the file
  /// Adds row `number` with its line end. Rows that follow the file's without a gap are written by write().
  void add(int64_t number, std::string row) { waiting_[number] = std::move(row); }
  /// Returns true if it wrote something.
  bool write();
  void sync();

 private:
  /// Returns the hashes of rows. Throws UserError(cannot_create) if the sources differ.
  std::vector<std::string> read_hashes() const;
  void read_rows();

  std::string path_, hashes_path_;
  std::string header_;  ///< of the file of hashes
  int64_t rows_ = 0;
  int64_t complete_ = 0;  ///< bytes of the complete rows
  std::map<int64_t, std::string> waiting_;
  std::optional<AppendFile> file_, hashes_;
};

}  // namespace llmtrain
