#pragma once
// Reports of llmtool validate on files of text and rows, and on rows of instruction data.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "data/files/document_reader.hpp"
#include "data/files/text_source.hpp"
#include "data/progress.hpp"
#include "data/quality/duplicates.hpp"
#include "text/chat/chat_encoder.hpp"
#include "text/tokenizer.hpp"

namespace llmtrain {

// Checks of documents: problems and lengths. Each segment is examined separately, by any thread.

struct CheckOptions {
  std::string text_column = "text";
  const Tokenizer* tokenizer = nullptr;  ///< null: tokens are not counted
  int32_t unknown_id = -1;               ///< id of the tokenizer's unknown token
};

/// Facts about a document or a segment of it.
struct SegmentFacts {
  bool row_is_broken = false;   ///< not a row of text: no other fact is known
  bool wrong_encoding = false;  ///< True if some bytes are not UTF-8
  std::string problem;          ///< first problem
  int64_t problem_byte = 0;     ///< offset in the segment
  int64_t bytes = 0;            ///< bytes of the text
  int64_t characters = 0;
  int64_t tokens = 0;
  int64_t unknown = 0;  ///< number of unknown tokens, and of characters without a token
  int64_t blank = 0;    ///< 1 = only white space
  uint64_t content = 0;
  uint64_t similar = 0;
  int64_t runs = 0;  ///< number of runs of three words
};

/// Nothing is known of a segment of a row that is too long.
SegmentFacts examine(const DocumentSegment& segment, InputKind kind, const CheckOptions& options);

struct ReportOptions {
  CheckOptions check;
  int64_t huge_bytes = int64_t{1} << 20;  ///< documents with more bytes are named
  int64_t unpacked_limit = int64_t{64} << 30;
  int threads = 1;
  size_t max_shown = 10;  ///< locations of each kind
};

/// Shortest, mean, median, p95, p99, longest, and a histogram whose classes begin at 0, 1, 2, 4, 8, ...; null if empty.
nlohmann::ordered_json length_facts(std::vector<uint32_t> lengths);

/// Reads all files once. Memory: 40 bytes per document, and per thread a segment of 16 MiB or the longest row. Keys of
/// the object: files [{path, bytes, documents}], documents, empty, blank, huge, bytes, characters, broken_rows,
/// encoding_errors, duplicates {exact, near}, problems, huge_documents, exact_duplicates, near_duplicates (lists of
/// locations), length {characters or tokens: {shortest, mean, median, p95, p99, longest, histogram [[from,
/// documents]]}}, and with a tokenizer tokens, characters_per_token, tokens_per_character, unknown, unknown_share.
/// `usable` is true if nothing is broken.
nlohmann::ordered_json make_data_report(const std::vector<InputFile>& files, const ReportOptions& options,
                                        const ProgressReport& report);

// Report of llmtool validate on rows of instruction data: what training on them would meet.

struct ConversationReportOptions {
  const ChatEncoder* encoder = nullptr;  ///< null: only the shape of rows is examined
  int64_t sequence_length = 0;           ///< longest sample, as batch.sequence_length; 0: no limit
  int64_t unpacked_limit = int64_t{64} << 30;
  int threads = 1;
  size_t max_shown = 10;  ///< locations of each kind
};

/// Keys of the object: usable, files [{path, bytes, rows, format}], rows, broken_rows, problems (locations), duplicates
/// {exact, near}, length {characters, tokens, trained_tokens: {shortest, mean, ...}}, warnings (texts); with an
/// encoder template, untrained, truncated, lost_targets, merged_borders, without_stop, split_tokens [{text, rows}].
/// Preference data also has pairs, equal, empty, and length.rejected_tokens; tokens are then those of the chosen
/// answers. `usable` is true if no row is broken and some row would train a token.
nlohmann::ordered_json make_conversation_report(const std::vector<InputFile>& files,
                                                const ConversationReportOptions& options, const ProgressReport& report);

}  // namespace llmtrain
