#pragma once
// Digests of cached files: <path>.digest proves a file complete before anything of it is interpreted.

#include <cstdint>
#include <string>

#include "parallel/communicator.hpp"

namespace llmtrain {

/// Collective: returns "<bytes> <content hash>" of a file, which all ranks read together.
std::string file_digest(const std::string& path, Communicator& communicator);
/// Writes <path>.digest.
void write_digest(const std::string& path, const std::string& digest);

enum class StoredFile : uint8_t { missing, damaged, whole };
/// Collective: returns true if the file and its digest exist and agree.
StoredFile check_digest(const std::string& path, Communicator& communicator);

}  // namespace llmtrain
