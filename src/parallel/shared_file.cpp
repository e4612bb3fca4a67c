#include "parallel/shared_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

namespace llmtrain {

std::shared_ptr<void> map_shared_file(const std::string& path, int64_t bytes, FileUse use) {
  const bool create = use == FileUse::create, write = use != FileUse::read;
  const int flags = (write ? O_RDWR : O_RDONLY) | (create ? O_CREAT | O_EXCL : 0);
  const int file = ::open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (file < 0) return nullptr;
  const auto length = static_cast<size_t>(bytes);
  void* memory = MAP_FAILED;
  if (!create || ::posix_fallocate(file, 0, bytes) == 0) {
    memory = ::mmap(nullptr, length, write ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, file, 0);
  }
  ::close(file);
  if (memory != MAP_FAILED) return {memory, [length](void* mapped) { ::munmap(mapped, length); }};
  if (create) ::unlink(path.c_str());
  return nullptr;
}

}  // namespace llmtrain
