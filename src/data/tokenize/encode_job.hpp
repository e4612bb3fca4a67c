#pragma once
// Encodes jobs of a tokenization: parts of documents of a text, or rows of JSON.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenize/tokenize_jobs.hpp"

namespace llmtrain {

struct EncodedRow;
struct LabelledTokens;
struct RowDocuments;
struct StoredRow;
struct TokenRow;

struct JobResult {
  std::vector<int32_t> ids;
  std::vector<uint8_t> mask;     // for rows with labels, otherwise empty
  std::vector<uint64_t> counts;  // number of tokens of each document
  int32_t highest = -1;
  int64_t skipped = 0;
  int64_t padding = 0;  // padding tokens that were omitted
  // Counts of rows of instruction data.
  int64_t untrained = 0, merged_borders = 0, without_stop = 0;
  std::vector<uint64_t> prints;  // hashes of tokens and mask
  std::vector<float> values;     // of each document of preference data, and difficulties
  // Counts of preference data; offsets of rows in the file.
  std::string rows;                 // of prompts
  std::vector<uint64_t> row_sizes;  // of each prompt
  int64_t equal = 0, empty = 0;
  std::optional<int64_t> first_equal, first_empty;
  int64_t irregular = 0;  // rows of conversations whose turns do not alternate
  std::optional<int64_t> first_irregular;
};

/// Encodes on any thread. Errors name the file and the line of their row.
class JobEncoder {
 public:
  explicit JobEncoder(const TokenizeRequest& request);

  JobResult encode(const TokenizeJob& job) const;

 private:
  FileHandle open(const TokenizeJob& job) const;
  int64_t cut_after(const FileHandle& file, int64_t place, int64_t end) const;
  JobResult encode_text(const TokenizeJob& job) const;
  /// `number` is that of the document in its file.
  void encode_slice(const TokenizeJob& job, const FileHandle& file, std::string_view text, int64_t at, int64_t number,
                    std::vector<int32_t>& ids) const;
  JobResult read_rows(const TokenizeJob& job, InputKind kind) const;
  /// `offset` is that of the row.
  void add_encoded(const RowDocuments& row, const std::vector<EncodedRow>& encoded, int64_t offset,
                   JobResult& result) const;
  void add_labelled(const RowDocuments& row, LabelledTokens& tokens, JobResult& result) const;
  void add_prompt(const StoredRow& row, const EncodedRow& encoded, JobResult& result) const;
  void add_text(std::string_view text, int64_t number, JobResult& result) const;
  void add_row(const TokenRow& row, JobResult& result) const;
  bool has_row(int32_t id) const { return request_.embedding_rows == 0 || id < request_.embedding_rows; }
  void require_rows_for(std::string_view text, std::span<const int32_t> ids) const;
  /// Returns the tokens of the longest of the last documents if they are too many, otherwise 0.
  int64_t too_long(const JobResult& result, size_t documents) const;

  const TokenizeRequest& request_;
  bool has_preferences_, has_values_;
};

}  // namespace llmtrain
