#pragma once
// Detects the kind of an input file: rows are known by the ending of the name or by the content, everything else by its
// ending.

#include <string_view>
#include <vector>

#include "data/files/text_source.hpp"
#include "data/progress.hpp"

namespace llmtrain {

/// .jsonl, .ndjson and the like, .h5: in capital or small letters.
bool names_rows(std::string_view path);
bool names_tokens(std::string_view path);

/// Fills in what is found of the kind, the compression and the text. `input` has its path, format and size. UserError
/// (bad_content) for an empty file and for a format that is known and not read.
void examine_input(const FileHandle& file, InputFile& input);

/// Tells what is noteworthy of how the files are read, of the first few where there are many.
void report_notes(const std::vector<InputFile>& files, const ProgressReport& report);

}  // namespace llmtrain
