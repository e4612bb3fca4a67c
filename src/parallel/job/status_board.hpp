#pragma once
// How statuses reach other nodes: each rank puts its own in memory that its node shares, and one rank of the node
// writes them to the node's file.

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "parallel/communicator.hpp"

namespace llmtrain {

/// Seconds between two writes of a node's file. Between 20 and 100 nodes it grows with their number, so that the file
/// system sees ten opens a second, and from 100 nodes on a tenth of their number. A rank counts as lost after at least
/// twelve of them.
double status_beat(int64_t nodes, double lost_after);

/// Largest size of a status.
inline constexpr size_t max_status_bytes = 4096;

class StatusBoard {
 public:
  /// Collective. Where the ranks of some node cannot share memory, each rank counts as a node of its own.
  /// `job`: number of the job, the same on every rank.
  StatusBoard(int64_t job, Communicator& communicator);

  /// First ranks of all nodes, after which their files are named.
  const std::vector<int>& first_ranks() const { return first_ranks_; }
  int first_rank() const { return first_rank_; }  ///< of this node

  // The following functions are called by one thread.
  void put(const std::string& status);
  /// The newest status of each rank of this node that has put one.
  std::string statuses();
  /// True if this rank writes for its node: no rank of the node before it has put a status for `patience` seconds.
  bool writes(double patience);

 private:
  using Word = std::atomic<uint64_t>;
  static_assert(Word::is_always_lock_free);
  /// A rank's status. The version is odd while it changes.
  struct Slot {
    Word version, bytes;
    Word text[max_status_bytes / sizeof(uint64_t)];
  };
  struct Member {
    std::string text;      ///< the newest one that was read
    uint64_t version = 0;  ///< of the last look
    std::chrono::steady_clock::time_point changed = std::chrono::steady_clock::now();
  };

  void look(size_t member);

  std::shared_ptr<Slot[]> slots_;
  std::vector<int> first_ranks_;
  int first_rank_ = 0;
  size_t me_ = 0;
  std::vector<Member> members_;  ///< ranks of this node
};

}  // namespace llmtrain
