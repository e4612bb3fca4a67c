#include "parallel/job/status_board.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "parallel/traffic.hpp"

namespace llmtrain {

namespace {

constexpr double shortest_beat = 0.05, usual_beat = 2, longest_beat = 10;  // seconds
constexpr double opens_per_second = 10;                                    // of a job of many nodes

}  // namespace

double status_beat(int64_t nodes, double lost_after) {
  const double wanted = std::clamp(static_cast<double>(nodes) / opens_per_second, usual_beat, longest_beat);
  return std::clamp(lost_after / 12, shortest_beat, wanted);
}

StatusBoard::StatusBoard(int64_t job, Communicator& communicator) {
  const auto node_size = static_cast<size_t>(communicator.node_size());
  const int node = traffic().node_of(communicator.rank());
  mapped_bytes_ = node_size * sizeof(Slot);
  const std::string path = fmt::format("/dev/shm/llmtrain-{}-{}", job, node);
  bool shared = communicator.node_rank() != 0 || share(path, true);
  communicator.barrier();
  if (communicator.node_rank() != 0) shared = share(path, false);
  std::array<int64_t, 1> failed = {shared ? 0 : 1};
  communicator.sum(failed);  // all have opened it, or have failed
  if (communicator.node_rank() == 0) ::unlink(path.c_str());
  if (failed[0] == 0) {
    me_ = static_cast<size_t>(communicator.node_rank());
    members_.resize(node_size);
    for (int rank = 0; rank < communicator.size(); ++rank) {
      if (traffic().node_of(rank) == static_cast<int>(first_ranks_.size())) first_ranks_.push_back(rank);
    }
    first_rank_ = first_ranks_[static_cast<size_t>(node)];
    return;
  }
  if (slots_ != nullptr) ::munmap(slots_, mapped_bytes_);
  slots_ = nullptr;
  members_.resize(1);
  for (int rank = 0; rank < communicator.size(); ++rank) first_ranks_.push_back(rank);
  first_rank_ = communicator.rank();
}

StatusBoard::~StatusBoard() {
  if (slots_ != nullptr) ::munmap(slots_, mapped_bytes_);
}

/// Maps the node's memory, which is zero at first. The file's space is reserved, since a store to a page without space
/// would end the process.
bool StatusBoard::share(const std::string& path, bool create) {
  const int flags = create ? O_RDWR | O_CREAT | O_EXCL : O_RDWR;
  const int file = ::open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (file < 0) return false;
  const auto bytes = static_cast<off_t>(mapped_bytes_);
  void* memory = MAP_FAILED;
  if (!create || ::posix_fallocate(file, 0, bytes) == 0) {
    memory = ::mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  }
  ::close(file);
  if (memory != MAP_FAILED) slots_ = static_cast<Slot*>(memory);
  return memory != MAP_FAILED;
}

void StatusBoard::put(const std::string& status) {
  if (slots_ == nullptr) {
    members_[me_].text = status;
    return;
  }
  std::array<uint64_t, max_status_bytes / sizeof(uint64_t)> words{};
  const size_t bytes = std::min(status.size(), max_status_bytes);
  std::memcpy(words.data(), status.data(), bytes);
  Slot& slot = slots_[me_];
  const uint64_t version = slot.version.load(std::memory_order_relaxed);
  slot.version.store(version + 1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  slot.bytes.store(bytes, std::memory_order_relaxed);
  for (size_t i = 0; i < words.size(); ++i) slot.text[i].store(words[i], std::memory_order_relaxed);
  slot.version.store(version + 2, std::memory_order_release);
}

/// Reads a rank's status unless it is changing, for which the next look is early enough.
void StatusBoard::look(size_t member) {
  if (slots_ == nullptr) return;
  const Slot& slot = slots_[member];
  Member& seen = members_[member];
  const uint64_t version = slot.version.load(std::memory_order_acquire);
  if (version == seen.version || version % 2 != 0) return;
  std::array<uint64_t, max_status_bytes / sizeof(uint64_t)> words{};
  const size_t bytes = std::min<size_t>(slot.bytes.load(std::memory_order_relaxed), max_status_bytes);
  for (size_t i = 0; i < words.size(); ++i) words[i] = slot.text[i].load(std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_acquire);
  if (slot.version.load(std::memory_order_relaxed) != version) return;
  seen.text.resize(bytes);
  std::memcpy(seen.text.data(), words.data(), bytes);
  seen.version = version;
  seen.changed = std::chrono::steady_clock::now();
}

std::string StatusBoard::statuses() {
  std::string all;
  for (size_t member = 0; member < members_.size(); ++member) {
    look(member);
    all += members_[member].text;
  }
  return all;
}

bool StatusBoard::writes(double patience) {
  const auto now = std::chrono::steady_clock::now();
  for (size_t member = 0; member < me_; ++member) {
    look(member);
    if (std::chrono::duration<double>(now - members_[member].changed).count() < patience) return false;
  }
  return true;
}

}  // namespace llmtrain
