#pragma once
// Counts of this rank's data communication, where transfers start, and of the files that it opens. Control
// communication, some hundred bytes a value, does not count. The record is process-wide, as is core/activity.hpp.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "core/files/opened_files.hpp"

namespace llmtrain {

/// Larger transfers between two ranks over MPI are several messages.
inline constexpr int64_t max_message_bytes = int64_t{512} << 20;
/// True if what a rank sends to another node of a unit's segments is one message: MPI copies small messages anyway, and
/// too many are slow. `bytes`: of all segments.
inline bool joins_segments(int64_t segments, int64_t bytes, int64_t nodes) {
  constexpr int64_t small = 64 << 10, most_messages = 512;
  if (segments < 2 || bytes == 0 || bytes > max_message_bytes) return false;
  return bytes <= small || segments * (nodes - 1) > most_messages;
}

/// Between whom data moves: inside a rank, between ranks of a node, between nodes.
enum class TrafficClass : uint8_t { own, node, network };
inline constexpr size_t traffic_classes = 3;
/// Axis of the mesh along which ranks exchange data.
enum class TrafficAxis : uint8_t { data, context, tensor, expert };
inline constexpr std::array<const char*, 4> traffic_axes = {"data", "context", "tensor", "expert"};

/// Counts of a rank's transfers in a step.
struct TrafficCounts {
  struct Class {
    int64_t sent = 0;      ///< bytes in messages
    int64_t received = 0;  ///< bytes in messages, or read in memory
    int64_t messages = 0;  ///< number of messages sent
    int64_t requests = 0;  ///< largest number of sends and receives in progress at once
  };
  using Classes = std::array<Class, traffic_classes>;
  Classes classes = {};                                ///< of all axes together
  std::array<Classes, traffic_axes.size()> axes = {};  ///< without requests
  int64_t requests = 0;                                ///< of all classes together
  int64_t files_opened = 0;

  Class& operator[](TrafficClass c) { return classes[static_cast<size_t>(c)]; }
  const Class& operator[](TrafficClass c) const { return classes[static_cast<size_t>(c)]; }
  int64_t messages() const { return (*this)[TrafficClass::node].messages + (*this)[TrafficClass::network].messages; }
  const Classes& of(TrafficAxis axis) const { return axes[static_cast<size_t>(axis)]; }
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
  TrafficClass class_of(int other) const {
    if (other == rank_) return TrafficClass::own;
    return node_of(other) == node_of(rank_) ? TrafficClass::node : TrafficClass::network;
  }

  void begin_step() {
    counts_ = {};
    for (size_t c = 0; c < traffic_classes; ++c) counts_.classes[c].requests = in_flight_[c];
    counts_.requests = all_in_flight();
    if (opened_before_ < 0) opened_before_ = opened_files();  // what the start opens is of no step
  }
  void end_step() {
    last_ = counts_;
    const int64_t opened = opened_files();
    last_.files_opened = opened - std::exchange(opened_before_, opened);
  }
  /// Counts of the last step that has ended.
  const TrafficCounts& last_step() const { return last_; }

  void send(int to, int64_t bytes) {
    for (TrafficCounts::Class* c : counted(class_of(to))) {
      ++c->messages;
      c->sent += bytes;
    }
  }
  /// Bytes that arrive from a rank, or that are read in its memory.
  void receive(int from, int64_t bytes) {
    for (TrafficCounts::Class* c : counted(class_of(from))) c->received += bytes;
  }
  /// Returns the axis before; see TrafficScope.
  TrafficAxis set_axis(TrafficAxis axis) { return std::exchange(axis_, axis); }
  /// `count` requests start, or end if it is negative.
  void add_requests(TrafficClass of, int64_t count) {
    int64_t& in_flight = in_flight_[static_cast<size_t>(of)];
    in_flight += count;
    counts_[of].requests = std::max(counts_[of].requests, in_flight);
    counts_.requests = std::max(counts_.requests, all_in_flight());
  }

 private:
  std::array<TrafficCounts::Class*, 2> counted(TrafficClass of) {
    return {&counts_[of], &counts_.axes[static_cast<size_t>(axis_)][static_cast<size_t>(of)]};
  }
  int64_t all_in_flight() const { return std::accumulate(in_flight_.begin(), in_flight_.end(), int64_t{0}); }

  int rank_ = 0;
  std::vector<int> node_of_rank_;
  TrafficCounts counts_, last_;
  TrafficAxis axis_ = TrafficAxis::data;
  std::array<int64_t, traffic_classes> in_flight_ = {};
  int64_t opened_before_ = -1;  ///< files, at the end of the last step
};

inline Traffic& traffic() {
  static Traffic traffic;
  return traffic;
}

/// Transfers that start while it lives are counted along an axis; others along the data axis.
class TrafficScope {
 public:
  explicit TrafficScope(TrafficAxis axis) : before_(traffic().set_axis(axis)) {}
  ~TrafficScope() { traffic().set_axis(before_); }
  TrafficScope(const TrafficScope&) = delete;
  TrafficScope& operator=(const TrafficScope&) = delete;

 private:
  TrafficAxis before_;
};

/// Requests of a transfer in progress.
class RequestCount {
 public:
  RequestCount() = default;
  ~RequestCount() { clear(); }
  RequestCount(const RequestCount&) = delete;
  RequestCount& operator=(const RequestCount&) = delete;

  /// A send or receive with this rank starts.
  void add(int peer) {
    const TrafficClass c = traffic().class_of(peer);
    ++counts_[static_cast<size_t>(c)];
    traffic().add_requests(c, 1);
  }
  /// All have ended.
  void clear() {
    for (size_t c = 0; c < traffic_classes; ++c) traffic().add_requests(static_cast<TrafficClass>(c), -counts_[c]);
    counts_ = {};
  }

 private:
  std::array<int64_t, traffic_classes> counts_ = {};
};

}  // namespace llmtrain
