#pragma once
// Counts of this rank's data communication, where transfers start, and of the files that it opens. Control
// communication, some hundred bytes a value, does not count. The record is process-wide, as is core/activity.hpp.

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/files/opened_files.hpp"

namespace llmtrain {

/// What a rank did in a step.
struct TrafficCounts {
  int64_t sent = 0, received = 0;  ///< bytes to and from other nodes
  int64_t within_node = 0;         ///< bytes received from ranks of this node, or read in their memory
  int64_t messages = 0;            ///< number of messages sent, to any rank
  int64_t requests = 0;            ///< largest number of sends and receives in progress at once
  int64_t files_opened = 0;
};

/// Main thread.
class Traffic {
 public:
  /// `node_of_rank`: number of each rank's node, in the order of the nodes' first ranks.
  void start(int rank, std::vector<int> node_of_rank) {
    rank_ = rank;
    node_of_rank_ = std::move(node_of_rank);
  }
  /// 0 before start(), and for a rank that MPI will refuse.
  int node_of(int rank) const {
    const auto index = static_cast<size_t>(rank);
    return index < node_of_rank_.size() ? node_of_rank_[index] : 0;
  }

  void begin_step() {
    counts_ = {};
    counts_.requests = in_flight_;
    opened_before_ = opened_files();
  }
  void end_step() {
    last_ = counts_;
    last_.files_opened = opened_files() - opened_before_;
  }
  /// Counts of the last step that has ended.
  const TrafficCounts& last_step() const { return last_; }

  void send(int to, int64_t bytes) {
    ++counts_.messages;
    if (!is_near(to)) counts_.sent += bytes;
  }
  void receive(int from, int64_t bytes) { (is_near(from) ? counts_.within_node : counts_.received) += bytes; }
  /// Bytes that this rank reads in the memory of another one of its node.
  void read(int64_t bytes) { counts_.within_node += bytes; }
  /// `count` requests start, or end if it is negative.
  void add_requests(int64_t count) {
    in_flight_ += count;
    counts_.requests = std::max(counts_.requests, in_flight_);
  }

 private:
  bool is_near(int other) const { return node_of(other) == node_of(rank_); }

  int rank_ = 0;
  std::vector<int> node_of_rank_;
  TrafficCounts counts_, last_;
  int64_t in_flight_ = 0, opened_before_ = 0;
};

inline Traffic& traffic() {
  static Traffic traffic;
  return traffic;
}

}  // namespace llmtrain
