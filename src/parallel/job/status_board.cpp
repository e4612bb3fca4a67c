#include "parallel/job/status_board.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "parallel/shared_file.hpp"
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
  const auto bytes = static_cast<int64_t>(node_size * sizeof(Slot));
  const std::string path = fmt::format("{}/llmtrain-{}-{}", shared_memory_folder, job, node);
  const bool first = communicator.node_rank() == 0;
  std::shared_ptr<void> memory = first ? map_shared_file(path, bytes, FileUse::create) : nullptr;
  communicator.barrier();
  if (!first) memory = map_shared_file(path, bytes, FileUse::write);
  std::array<int64_t, 1> failed = {memory == nullptr ? 1 : 0};
  communicator.sum(failed);  // all have opened it, or have failed
  if (first) ::unlink(path.c_str());
  if (failed[0] == 0) {
    slots_ = {memory, static_cast<Slot*>(memory.get())};
    me_ = static_cast<size_t>(communicator.node_rank());
    members_.resize(node_size);
    for (int rank = 0; rank < communicator.size(); ++rank) {
      if (traffic().node_of(rank) == static_cast<int>(first_ranks_.size())) first_ranks_.push_back(rank);
    }
    first_rank_ = first_ranks_[static_cast<size_t>(node)];
    return;
  }
  members_.resize(1);
  for (int rank = 0; rank < communicator.size(); ++rank) first_ranks_.push_back(rank);
  first_rank_ = communicator.rank();
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
