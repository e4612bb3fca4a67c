#pragma once
// A cached file is known whole by <path>.digest beside it, which is read before anything of the file is interpreted.

#include <cstdint>
#include <string>

#include "parallel/communicator.hpp"

namespace llmtrain {

/// Collective: "<bytes> <content hash>" of a file, which all ranks read together.
std::string file_digest(const std::string& path, Communicator& communicator);
/// Writes <path>.digest.
void write_digest(const std::string& path, const std::string& digest);

enum class StoredFile : uint8_t { missing, damaged, whole };
/// Collective: whether the file and its digest exist and agree.
StoredFile check_digest(const std::string& path, Communicator& communicator);

}  // namespace llmtrain
