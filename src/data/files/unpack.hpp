#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "data/files/text_source.hpp"
#include "data/progress.hpp"
#include "parallel/communicator.hpp"

namespace llmtrain {

/// Collective. Each packed file gets its text in <folder>/unpacked-<hash of the packed file>.txt with its digest, and
/// is read from there; an intact file that is already there is used. A thread of a rank unpacks a compressed file;
/// ranks and threads share the groups of rows of a table. Throws UserError for a file that is corrupt, cut off, or
/// unpacks to more than `limit` bytes.
void unpack_files(std::vector<InputFile*> files, const std::string& folder, int64_t limit, Communicator& communicator,
                  const ProgressReport& report);

/// Opens a file of lines, or the rows of a table, all columns, as lines of JSON in a temporary file. `columns`: entries
/// of data.columns. UserError.
FileHandle open_lines(const std::string& path, const std::vector<std::string>& columns = {});

}  // namespace llmtrain
