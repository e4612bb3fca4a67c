#pragma once
// What llmtool validate tells of files of text and rows.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "data/progress.hpp"
#include "data/quality/document_check.hpp"

namespace llmtrain {

struct ReportOptions {
  CheckOptions check;
  int64_t huge_bytes = int64_t{1} << 20;  ///< documents of more are named
  int64_t unpacked_limit = int64_t{64} << 30;
  int threads = 1;
  size_t max_shown = 10;  ///< places of each kind
};

/// Reads all files once. Memory: 40 bytes a document, and for each thread a part of 16 MiB or the longest row. Keys of
/// the object: files [{path, bytes, documents}], documents, empty, blank, huge, bytes, characters, broken_rows,
/// encoding_errors, duplicates {exact, near}, problems, huge_documents, exact_duplicates, near_duplicates (lists of
/// places), length {characters or tokens: {shortest, mean, median, p95, p99, longest, histogram [[from, documents]]}},
/// and with a tokenizer tokens, characters_per_token, tokens_per_character, unknown, unknown_share. `usable`: nothing
/// is broken.
nlohmann::ordered_json make_data_report(const std::vector<InputFile>& files, const ReportOptions& options,
                                        const ProgressReport& report);

}  // namespace llmtrain
