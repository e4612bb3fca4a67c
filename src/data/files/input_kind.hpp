#pragma once
// Finds input files and detects their kinds: the ending of the name or the content identifies rows, the ending
// everything else.

#include <string>
#include <string_view>
#include <vector>

#include "data/files/text_source.hpp"
#include "data/progress.hpp"

namespace llmtrain {

/// Finds files in the order of `patterns`, those of one pattern sorted by name. The ending of the name, in any case,
/// gives the kind: .h5 tokens; .jsonl, .ndjson, .jsonlines rows (of ids if the first one has input_ids, otherwise of
/// text or of instruction data). Files of other names that hold rows are rows, too, and so are tables
/// (data/tables), of which the columns that their rows can use are read; everything else is text. The
/// content, or a final .gz or .zst, identifies compressed files. Throws UserError for a pattern without a file, a
/// repeated file, an empty or unreadable file, and a known but unsupported format. If the first line of a text ends
/// with CR LF, LF in its separator means CR LF.
std::vector<InputFile> find_input_files(const std::vector<std::string>& patterns, const TextFormat& format);

/// Recognises .jsonl, .ndjson and the like, .h5, in upper or lower case.
bool names_rows(std::string_view path);
bool names_tokens(std::string_view path);

/// Columns of a table whose values are numbers or truth values: those with the usual names, and those that entries of
/// data.columns name.
std::vector<std::string> value_columns(const std::vector<std::string>& entries);

/// Sets the kind, the compression and the text of `input`, which has its path, format and size. Throws
/// UserError(bad_content) for an empty file and for a known but unsupported format.
void examine_input(const FileHandle& file, InputFile& input);

bool has_kind(const std::vector<InputFile>& files, InputKind kind);

/// Reports notes on how the files are read, for the first few if there are many.
void report_notes(const std::vector<InputFile>& files, const ProgressReport& report);

}  // namespace llmtrain
