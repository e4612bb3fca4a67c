#pragma once
// Detects the kind of an input file: the ending of the name or the content identifies rows, the ending everything else.

#include <string_view>
#include <vector>

#include "data/files/text_source.hpp"
#include "data/progress.hpp"

namespace llmtrain {

/// Recognises .jsonl, .ndjson and the like, .h5, in upper or lower case.
bool names_rows(std::string_view path);
bool names_tokens(std::string_view path);

/// Sets the kind, the compression and the text of `input`, which has its path, format and size. Throws
/// UserError(bad_content) for an empty file and for a known but unsupported format.
void examine_input(const FileHandle& file, InputFile& input);

bool has_kind(const std::vector<InputFile>& files, InputKind kind);

/// Reports notes on how the files are read, for the first few if there are many.
void report_notes(const std::vector<InputFile>& files, const ProgressReport& report);

}  // namespace llmtrain
