#pragma once
// Log-probabilities of a teacher for the trained tokens of a data set, on disk: a header, the first token of each
// sample, a byte for each sample that is complete, and a record for each token. Ranks write and read records
// independently.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/batch.hpp"
#include "core/files/file_handle.hpp"
#include "data/stream/batch_source.hpp"

namespace llmtrain {

/// Sizes of the file.
struct TeacherFileShape {
  int64_t samples = 0;
  int64_t tokens = 0;      ///< trained tokens of all samples
  int64_t vocabulary = 0;  ///< tokens
  int64_t top_k = 0;       ///< 0: all tokens
  bool operator==(const TeacherFileShape&) const = default;

  /// Bytes of a token: 4 for each token of the vocabulary, or 8 for each of the top k and 4 for the rest; and 4 of a
  /// checksum.
  int64_t record_bytes() const { return 4 + (top_k == 0 ? 4 * vocabulary : 8 * top_k + 4); }
  int64_t bytes() const;
};

/// Values of some tokens, one after the other.
struct TeacherValues {
  std::vector<int32_t> tokens;  ///< [n, k]; empty: all tokens
  std::vector<float> logp;      ///< nats [n, k], or [n, W]
  std::vector<float> rest;      ///< nats [n]; empty with all tokens

  void resize(const TeacherFileShape& shape, int64_t count);
};

class TeacherFile {
 public:
  /// Makes a file without values, or keeps the file of this name that another job has made meanwhile.
  /// `first_tokens`: of each sample, and the end. Throws UserError.
  static void create(const std::string& path, const TeacherFileShape& shape, std::span<const int64_t> first_tokens);
  /// Opens a file of create(). Throws UserError(bad_content) if it is none, and as FileHandle.
  TeacherFile(const std::string& path, bool writes);

  const std::string& path() const { return file_.path(); }
  const TeacherFileShape& shape() const { return shape_; }
  std::vector<uint8_t> complete_samples() const;
  /// Says that the samples [first, last) are complete. Call sync() before: their values must be on the disk.
  void mark_complete(int64_t first, int64_t last) const;
  void sync() const { file_.sync(); }

  /// For each row of a batch, the number of its token; -1 for rows that are not trained. A thread at a time.
  void find_tokens(const HostBatch& batch, std::vector<int64_t>& tokens) const;
  void write(int64_t token, const TeacherValues& values, int64_t index) const;
  /// Reads values of tokens; those of -1 are arbitrary. Throws UserError(bad_content) if they are damaged or missing.
  void read(std::span<const int64_t> tokens, TeacherValues& values) const;

 private:
  int64_t place_of(int64_t token) const { return shape_.bytes() - (shape_.tokens - token) * shape_.record_bytes(); }

  FileHandle file_;
  TeacherFileShape shape_;
  mutable std::vector<char> record_;
};

/// True if a row of a batch is trained.
inline bool is_trained_row(const HostBatch& batch, size_t row) {
  return batch.targets[row] != ignore_target && batch.loss_weights[row] != 0;
}

}  // namespace llmtrain
