#include "params/unit_gathers.hpp"

#include <algorithm>
#include <utility>

#include "parallel/node_grid.hpp"
#include "parallel/traffic.hpp"

namespace llmtrain {

void UnitGathers::start(Communicator& communicator, Stream& stream, Transfer::Meanwhile meanwhile) {
  communicator_ = &communicator;
  stream_ = &stream;
  meanwhile_ = std::move(meanwhile);
}

Communicator& UnitGathers::communicator() const {
  LLMTRAIN_CHECK(communicator_ != nullptr, "the parameter store has not been started");
  return *communicator_;
}

int UnitGathers::max_at_once(const UnitStates& units) {
  constexpr int64_t most_requests = 2048, most = 16;  // far fewer than NodeMemory::slots
  const ParamStoreOptions& o = units.options();
  const NodeGrid grid{o.size, std::max(o.ranks_per_node, 1)};
  const int64_t peers = grid.has_levels() ? grid.nodes() : o.size - o.node_size + 1;
  int64_t messages = 1;
  for (const UnitState& u : units) {
    const int64_t segments = std::ssize(u.segments);
    const int64_t bytes = u.layout.elements() / o.size * static_cast<int64_t>(sizeof(float));  // of a shard, at most
    const bool joined = grid.has_levels() && joins_segments(segments, bytes, grid.nodes());
    if (!joined) messages = std::max(messages, segments);
  }
  return static_cast<int>(std::clamp<int64_t>(most_requests / (2 * peers * messages), 1, most));
}

void UnitGathers::begin(int unit, const Tensor& buffer) {
  Gather& gather = at(unit);
  gather.number = ++transfers_;
  gather.transfer = communicator().all_gather(buffer, units_[unit].stored_borders, *stream_);
}

void UnitGathers::wait(int unit) {
  at(unit).transfer.wait(*stream_, meanwhile_);
  at(unit).number = 0;
}

void UnitGathers::finish(int unit) { at(unit).transfer.finish(*stream_, meanwhile_); }

void UnitGathers::finish_all() {
  for (int unit = 0; unit < units_.size(); ++unit) finish(unit);
}

void UnitGathers::gather_all(bool trained, const std::function<Tensor(int unit)>& buffer) {
  finish_all();
  for (int unit = 0; unit < units_.size(); ++unit) {
    if (unit >= at_once_ && device_memory_is_host()) finish(unit - at_once_);
    if (units_[unit].trained() == trained) begin(unit, buffer(unit));
  }
  if (device_memory_is_host()) finish_all();
}

void UnitGathers::wait_for_old() {
  constexpr int64_t max_behind = 24;
  for (int unit = 0; unit < units_.size(); ++unit) {
    const int64_t number = at(unit).number;
    if (number > 0 && transfers_ - number >= max_behind) wait(unit);
  }
  ++transfers_;
}

void UnitGathers::progress() {
  if (!device_memory_is_host()) return;
  if (meanwhile_) meanwhile_();
  for (Gather& gather : gathers_) {
    if (gather.number > 0 && gather.transfer.pending()) return;  // any call of MPI moves all messages
  }
}

}  // namespace llmtrain
