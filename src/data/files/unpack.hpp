#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "data/files/text_source.hpp"
#include "data/progress.hpp"
#include "parallel/communicator.hpp"

namespace llmtrain {

/// Collective. Each compressed file is unpacked by one thread of one rank into <folder>/unpacked-<hash of the
/// compressed file>.txt with its digest, and read from there; an intact file that is already there is used. Throws
/// UserError for a file that is corrupt, cut off, or unpacks to more than `limit` bytes.
void unpack_files(std::vector<InputFile*> files, const std::string& folder, int64_t limit, Communicator& communicator,
                  const ProgressReport& report);

}  // namespace llmtrain
