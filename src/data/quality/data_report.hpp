#pragma once
// Report of llmtool validate on files of text and rows.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "data/progress.hpp"
#include "data/quality/document_check.hpp"

namespace llmtrain {

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

}  // namespace llmtrain
