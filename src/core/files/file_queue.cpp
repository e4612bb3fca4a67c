#include "core/files/file_queue.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "core/activity.hpp"

namespace llmtrain {

FileQueue::FileQueue(char* memory, int64_t bytes, Way best) {
  if (best == Way::calls) return;
  auto ring = std::make_unique<IoRing>();
  refusal_ = ring->open(depth);
  if (!refusal_.empty()) return;
  ring_ = std::move(ring);
  way_ = Way::ring;
  refusal_ = best == Way::fixed ? ring_->fix(memory, bytes) : "not wanted";
  if (refusal_.empty()) way_ = Way::fixed;
}

std::string FileQueue::text() const {
  if (way_ == Way::fixed) return "io_uring, fixed buffers";
  if (way_ == Way::ring) return fmt::format("io_uring (fixed buffers: {})", refusal_);
  return fmt::format("reads and writes in threads (io_uring: {})", refusal_);
}

void FileQueue::submit(const FileHandle& file, bool writes, const FilePart& part, size_t index) {
  const FileCall call;
  ring_->submit({writes, file.descriptor_, part.offset, part.bytes, part.memory, index});
}

IoRing::Result FileQueue::wait() {
  const FileCall call;
  return ring_->wait();
}

/// What the kernel has left undone of a part, this thread does: it knows how to go on and what is an error.
void FileQueue::finish(const FileHandle& file, bool writes, const FilePart& part, int64_t result) {
  if (result == part.bytes) return;
  if (result < 0 && result != -EINTR && result != -EAGAIN) {
    const int error = static_cast<int>(-result);
    if (writes) file.fail_to_write(part.bytes, error);
    file.fail_to_read(error);
  }
  const int64_t done = std::max<int64_t>(result, 0);
  if (writes) {
    file.write(part.offset + done, part.bytes - done, part.memory + done);
  } else {
    file.read(part.offset + done, part.bytes - done, part.memory + done);
  }
}

}  // namespace llmtrain
