#pragma once
#include <cstdint>
#include <memory>
#include <string>

namespace llmtrain {

inline constexpr const char* shared_memory_folder = "/dev/shm";  ///< where files lie in memory

enum class FileUse : uint8_t { create, write, read };

/// Maps a file of `bytes` bytes, of which a new one is zero. Its space is reserved, since a store to a page without
/// space would end the process. Null on failure.
std::shared_ptr<void> map_shared_file(const std::string& path, int64_t bytes, FileUse use);

}  // namespace llmtrain
