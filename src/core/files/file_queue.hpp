#pragma once
// Many parts of a file at once: while some are on their way, others are worked on. Through io_uring where the kernel
// has it, else by plain reads and writes of the calling thread.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "core/files/file_handle.hpp"
#include "core/files/io_ring.hpp"

namespace llmtrain {

/// Bytes of a file, and the memory where they come to or from.
struct FilePart {
  int64_t offset, bytes;
  char* memory;
};

/// Of one thread at a time.
class FileQueue {
 public:
  /// Plain calls; io_uring; and that with memory whose pages were looked up once.
  enum class Way : uint8_t { calls, ring, fixed };
  static constexpr size_t depth = 8;  ///< parts under way at once: enough of 1 MiB to keep a disk busy

  /// Plain calls.
  FileQueue() = default;
  /// The best way that the system allows, up to `best`. memory: that of most parts, as long as the queue lives.
  FileQueue(char* memory, int64_t bytes, Way best = Way::fixed);

  Way way() const { return way_; }
  /// For people, with the reason where it is not the best one.
  std::string text() const;

  /// Parts 0 to count - 1, as part_of(i) gives them. Each that is there goes to arrived(i), in any order, while others
  /// are on their way; empty ones may be left out. UserErrors are FileHandle's; with any error, those of `arrived` too,
  /// nothing is on its way any more when it comes out.
  template <class PartOf, class Arrived>
  void read(const FileHandle& file, size_t count, const PartOf& part_of, const Arrived& arrived) {
    move(file, false, count, part_of, arrived);
  }
  /// The same; each goes to leaves(i) before it is written.
  template <class PartOf, class Leaves>
  void write(const FileHandle& file, size_t count, const PartOf& part_of, const Leaves& leaves) {
    move(file, true, count, part_of, leaves);
  }

 private:
  /// The kernel has the memory of as many parts: whatever happens, it must have given them back.
  struct UnderWay {
    FileQueue& queue;
    size_t parts = 0;
    ~UnderWay() {
      for (; parts > 0; --parts) queue.wait();
    }
  };

  template <class PartOf, class Visit>
  void move(const FileHandle& file, bool writes, size_t count, const PartOf& part_of, const Visit& visit);
  template <class PartOf, class Visit>
  void call(const FileHandle& file, bool writes, size_t count, const PartOf& part_of, const Visit& visit) const;
  void submit(const FileHandle& file, bool writes, const FilePart& part, size_t index);
  IoRing::Result wait();
  static void finish(const FileHandle& file, bool writes, const FilePart& part, int64_t result);

  std::unique_ptr<IoRing> ring_;
  Way way_ = Way::calls;
  std::string refusal_ = "not wanted";  ///< of the next better way
};

template <class PartOf, class Visit>
void FileQueue::move(const FileHandle& file, bool writes, size_t count, const PartOf& part_of, const Visit& visit) {
  if (way_ == Way::calls) return call(file, writes, count, part_of, visit);
  UnderWay under_way{*this};
  size_t next = 0;
  const auto submit_more = [&] {
    for (; next < count && under_way.parts < depth; ++next) {
      const FilePart part = part_of(next);
      if (part.bytes == 0) continue;
      if (writes) visit(next);
      submit(file, writes, part, next);
      ++under_way.parts;
    }
  };
  submit_more();
  while (under_way.parts > 0) {
    const IoRing::Result result = wait();
    --under_way.parts;
    const auto index = static_cast<size_t>(result.tag);
    finish(file, writes, part_of(index), result.bytes);
    submit_more();
    if (!writes) visit(index);
  }
}

/// Parts that follow one another in file and memory are one call.
template <class PartOf, class Visit>
void FileQueue::call(const FileHandle& file, bool writes, size_t count, const PartOf& part_of,
                     const Visit& visit) const {
  for (size_t begin = 0, end = 0; begin < count; begin = end) {
    FilePart all = part_of(begin);
    for (end = begin + 1; end < count; ++end) {
      const FilePart part = part_of(end);
      if (part.offset != all.offset + all.bytes || part.memory != all.memory + all.bytes) break;
      all.bytes += part.bytes;
    }
    for (size_t i = begin; writes && i < end; ++i) visit(i);
    writes ? file.write(all.offset, all.bytes, all.memory) : file.read(all.offset, all.bytes, all.memory);
    for (size_t i = begin; !writes && i < end; ++i) visit(i);
  }
}

}  // namespace llmtrain
