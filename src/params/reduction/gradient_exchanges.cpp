#include "params/reduction/gradient_exchanges.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "kernels/elementwise.hpp"
#include "parallel/traffic.hpp"

namespace llmtrain {

namespace {

/// Maximum number of values in one exchange that come as messages from single ranks, over all rounds and numbers of
/// groups.
int64_t max_received_shards(const ParamStoreOptions& o, const ReductionPlan& plan) {
  if (o.size == 1) return 0;
  if (plan.by_node()) return (plan.nodes().nodes() - 1) * plan.max_node_values();
  const int64_t others = o.rank < o.groups ? std::min<int64_t>(o.size, o.groups) - 1 : o.groups;
  return std::min<int64_t>(others, o.size - o.node_size) * plan.max_values();
}

Tensor cut(const Tensor& segment, const ShardBorders& part) { return part_of(segment, part.begin, part.end); }

int64_t elements_of(const ShardBorders& part) { return part.end - part.begin; }

}  // namespace

GradientExchanges::GradientExchanges(const UnitStates& units, const ReductionPlan& plan, UnitGathers& gathers)
    : units_(units),
      plan_(plan),
      gathers_(gathers),
      received_shards_(max_received_shards(options_, plan)),
      staging_(static_cast<size_t>(plan.exchanges_at_once())),
      rounds_(staging_.size() + 1) {
  if (!by_node()) return;
  const NodeGrid& nodes = plan.nodes();
  const int64_t own = nodes.node_of(options_.rank), first = nodes.first_rank(own), ranks = nodes.size_of(own);
  for (int64_t member = 0; member < ranks; ++member) owners_.push_back({first + member});
  for (int64_t owner = 0; owner < options_.size; ++owner) {
    if (nodes.node_of(owner) != own) owners_[static_cast<size_t>(nodes.speaker(own, owner) - first)].push_back(owner);
  }
  if (!device_memory_is_host()) neighbour_values_ = (ranks - 1) * plan.max_values();
}

const std::vector<int64_t>& GradientExchanges::own_owners() const {
  return owners_[static_cast<size_t>(options_.rank % plan_.nodes().per_node)];
}

ShardBorders GradientExchanges::part_of_owner(const UnitSegment& s, int64_t owner) {
  return {s.borders[static_cast<size_t>(owner)], s.borders[static_cast<size_t>(owner) + 1]};
}

int64_t GradientExchanges::elements_of_owners(const UnitSegment& s) const {
  int64_t elements = 0;
  for (const int64_t owner : own_owners()) {
    elements += elements_of(borders_of_shard(s.elements(), owner, options_.size));  // before UnitStates has borders
  }
  return elements;
}

/// Returns the element of the staging memory at which the values of other ranks of the node begin.
int64_t GradientExchanges::begin_of_neighbours(const UnitSegment& s) const {
  return received_shards_ * s.shard_elements() + plan_.max_node_values() * elements_of_owners(s);
}

/// Number of elements of staging memory for a segment, at most.
int64_t GradientExchanges::staging_elements(const UnitSegment& s) const {
  if (!by_node()) return received_shards_ * s.shard_elements();
  return begin_of_neighbours(s) + neighbour_values_ * elements_of_owners(s);
}

void GradientExchanges::plan(Arena& arena) {
  int64_t largest = 0;
  for (const UnitState& u : units_) {
    for (const UnitSegment& s : u.segments) largest = std::max(largest, u.trained() ? staging_elements(s) : 0);
  }
  if (largest == 0 && received_shards_ == 0) return;
  for (size_t i = 0; i < staging_.size(); ++i) {
    arena.add(staging_[i].memory, MemoryCategory::communication, fmt::format("received gradients {}", i), DType::f32,
              {largest});
  }
}

int64_t GradientExchanges::max_bytes() const {
  int64_t largest = 0;
  for (const UnitState& u : units_) {
    for (const UnitSegment& s : u.segments) {
      if (u.trained()) largest = std::max(largest, s.elements() + received_shards_ * s.shard_elements());
    }
  }
  return largest * static_cast<int64_t>(sizeof(float));
}

void GradientExchanges::start(Stream& stream, Add add) {
  stream_ = &stream;
  add_ = std::move(add);
  const auto ranks = static_cast<size_t>(options_.size), values = static_cast<size_t>(plan_.max_values());
  const auto nodes = by_node() ? static_cast<size_t>(plan_.nodes().nodes() * plan_.max_node_values()) : size_t{0};
  received_.resize(ranks * values);
  groups_.reserve(std::max(ranks * values, nodes));
  tensors_.reserve(std::max(ranks * values, nodes));
  if (by_node()) {
    if (!device_memory_is_host()) node_stream_.emplace();
    sends_.reserve(std::max(own_owners().size(), neighbour_values_ > 0 ? ranks * values : 0));
    receives_.reserve(std::max(nodes, static_cast<size_t>(neighbour_values_) * own_owners().size()));
  }
  in_flight_.reserve(staging_.size());
  for (Staging& staging : staging_) {
    staging.own.reserve(values);
    staging.transfers.reserve(values);
  }
  for (Round& round : rounds_) {
    round.contributes.assign(values, std::vector<uint8_t>(ranks));
    round.values.reserve(std::max(ranks * values, nodes));
    round.node_values.reserve(nodes == 0 ? 0 : static_cast<size_t>(options_.ranks_per_node) * values);
  }
}

void GradientExchanges::begin_round(const GroupSchedule& schedule, int64_t round) {
  if (options_.size == 1 || !schedule.exchanges(round)) return;
  round_ = &rounds_[static_cast<size_t>(round) % rounds_.size()];
  lay_out_ranks(schedule, round, *round_);
  if (by_node()) lay_out_nodes(schedule, round, *round_);
}

void GradientExchanges::lay_out_ranks(const GroupSchedule& schedule, int64_t round, Round& layout) const {
  for (std::vector<uint8_t>& flags : layout.contributes) std::ranges::fill(flags, uint8_t{0});
  layout.values.clear();
  layout.node_values.clear();
  layout.values_per_rank = 0;
  const int64_t node = by_node() ? plan_.nodes().node_of(options_.rank) : -1;
  int64_t neighbours = 0;
  for (int64_t rank = 0; rank < options_.size; ++rank) {
    size_t index = 0;
    plan_.each_value(schedule.exchanged(round, rank), schedule.groups, [&](const GroupRange& groups) {
      layout.contributes.at(index)[static_cast<size_t>(rank)] = 1;
      std::vector<Value>& values = by_node() ? layout.node_values : layout.values;
      if (!by_node()) {
        values.push_back({groups, rank, index});
      } else if (plan_.nodes().node_of(rank) == node) {
        values.push_back({groups, rank, index, rank == options_.rank ? 0 : neighbours++});
      }
      layout.values_per_rank = std::max(layout.values_per_rank, ++index);
    });
  }
}

void GradientExchanges::lay_out_nodes(const GroupSchedule& schedule, int64_t round, Round& layout) const {
  layout.node_sums.start(schedule.groups);
  for (const Value& value : layout.node_values) layout.node_sums.push(value.groups);
  for (int64_t node = 0; node < plan_.nodes().nodes(); ++node) {
    const int64_t first = plan_.nodes().first_rank(node);
    size_t index = 0;
    each_node(schedule.exchanged(round, first, first + plan_.nodes().size_of(node)), schedule.groups,
              [&](const GroupRange& groups) {
                layout.values.push_back({groups, node, index++});
              });
  }
}

/// Fills `received_`: the shards that arrive from other ranks, contiguous in a staging memory by value and rank.
void GradientExchanges::lay_out_received(const UnitSegment& s, const Round& round, const Tensor& memory) {
  int64_t shards = 0;
  for (size_t i = 0; i < round.values_per_rank; ++i) {
    for (int r = 0; r < options_.size; ++r) {
      Tensor& place = received_at(i, r);
      place = Tensor();
      if (round.contributes[i][static_cast<size_t>(r)] == 0 || r == options_.rank || s.shard_elements() == 0) continue;
      if (gathers_.communicator().reads_directly(r)) continue;
      place = part_of(memory, shards * s.shard_elements(), (shards + 1) * s.shard_elements());
      ++shards;
    }
  }
  LLMTRAIN_CHECK(shards <= received_shards_, "more gradients arrive than were planned");
}

/// Each rank of the node sends the others those parts of its values that they add.
void GradientExchanges::send_in_node(const UnitSegment& s, Staging& staging) {
  sends_.clear();
  receives_.clear();
  const int64_t first = plan_.nodes().first_rank(plan_.nodes().node_of(options_.rank));
  for (int64_t member = 0; member < std::ssize(owners_); ++member) {
    if (first + member == options_.rank) continue;
    for (const Tensor& value : staging.own) {
      for (const int64_t owner : owners_[static_cast<size_t>(member)]) {
        const Tensor part = cut(value, part_of_owner(s, owner));
        if (part.numel() > 0) sends_.push_back({part, static_cast<int>(first + member)});
      }
    }
  }
  int64_t at = begin_of_neighbours(s);
  for (const Value& value : round_->node_values) {
    if (value.sender == options_.rank) continue;
    for (const int64_t owner : own_owners()) {
      const int64_t elements = elements_of(part_of_owner(s, owner));
      const Tensor place = part_of(staging.memory, at, at + elements);
      if (elements > 0) receives_.push_back({place, static_cast<int>(value.sender)});
      at += elements;
    }
  }
  staging.transfers.push_back(gathers_.communicator().send_and_receive(sends_, receives_, *stream_));
}

void GradientExchanges::begin(int unit, size_t segment, std::span<const Tensor> values) {
  LLMTRAIN_CHECK(!full(), "too many exchanges are in progress");
  const UnitSegment& s = units_[unit].segments[segment];
  Staging& staging = staging_[next_staging_];
  staging.own.assign(values.begin(), values.end());
  staging.transfers.clear();
  Communicator& communicator = gathers_.communicator();
  // Before the layout, which others need while this waits.
  for (size_t i = 0; i < round_->values_per_rank && !node_stream_; ++i) gathers_.wait_for_old();
  if (!by_node()) lay_out_received(s, *round_, staging.memory);
  for (size_t i = 0; i < round_->values_per_rank && !node_stream_; ++i) {
    const Tensor send = i < values.size() ? values[i] : Tensor(nullptr, DType::f32, {s.elements()});
    if (by_node()) {
      staging.transfers.push_back(communicator.share_in_node(send, round_->contributes[i]));
      continue;
    }
    const std::span<const Tensor> places(&received_at(i, 0), static_cast<size_t>(options_.size));
    staging.transfers.push_back(
        communicator.exchange_shards(send, s.borders, places, round_->contributes[i], *stream_));
  }
  in_flight_.push_back({unit, segment, round_, next_staging_});
  next_staging_ = (next_staging_ + 1) % staging_.size();
  if (node_stream_) {
    send_in_node(s, staging);
    send_node_sums(in_flight_.back());
  }
  send_arrived();
}

/// True if what other ranks of the exchange send, or share in the node, has not arrived.
bool GradientExchanges::pending(const Exchange& exchange) const {
  const Staging& staging = staging_[exchange.staging];
  if (exchange.sent) return staging.messages.pending();
  return std::ranges::any_of(staging.transfers, [](const Transfer& t) { return t.pending(); });
}

/// Sends the node's sums of those exchanges whose values are there, in their order.
void GradientExchanges::send_arrived() {
  for (Exchange& exchange : in_flight_) {
    if (!by_node() || exchange.sent) continue;
    if (pending(exchange)) return;
    send_node_sums(exchange);
  }
}

/// This part of a value of a rank, in that rank's memory.
Tensor GradientExchanges::value_of(const Exchange& exchange, const Value& value, const OwnerPart& part) const {
  const Staging& staging = staging_[exchange.staging];
  const int64_t elements = elements_of(part.borders);
  if (value.sender == options_.rank) return cut(staging.own[value.index], part.borders);
  if (node_stream_) {
    const int64_t begin = part.first + value.neighbour * part.next;
    return part_of(staging.memory, begin, begin + elements);
  }
  const void* shared = staging.transfers[value.index].contribution(static_cast<int>(value.sender));
  auto* first = static_cast<float*>(const_cast<void*>(shared)) + part.borders.begin;
  return {first, DType::f32, {elements}};
}

/// Adds a part of the values of this node's ranks along the tree; `sums` has memory for the node's sums.
void GradientExchanges::add_node_values(Exchange& exchange, const OwnerPart& part, const Tensor& sums) {
  const Round& round = *exchange.round;
  const int64_t elements = elements_of(part.borders);
  int64_t index = 0;
  for (const TreeFold::Sum& sum : round.node_sums.sums()) {
    tensors_.clear();
    for (size_t i = sum.begin; i < sum.end; ++i) {
      const Value& value = round.node_values[i];
      tensors_.push_back(value_of(exchange, value, part));
      const bool counted = node_stream_ && value.sender != options_.rank;  // as a message
      if (!counted) {
        traffic().receive(gathers_.communicator().job_rank(static_cast<int>(value.sender)), tensors_.back().bytes());
      }
    }
    const Tensor out = part_of(sums, index * elements, (index + 1) * elements);
    add_tree(out, tensors_, round.node_sums.additions(sum), node_stream_ ? *node_stream_ : *stream_);
    ++index;
  }
}

void GradientExchanges::send_node_sums(Exchange& exchange) {
  const UnitSegment& s = units_[exchange.unit].segments[exchange.segment];
  const Round& round = *exchange.round;
  Staging& staging = staging_[exchange.staging];
  Stream& stream = node_stream_ ? *node_stream_ : *stream_;
  for (Transfer& transfer : staging.transfers) transfer.wait(stream);
  const int64_t node = plan_.nodes().node_of(options_.rank),
                count = static_cast<int64_t>(round.node_sums.sums().size());
  int64_t at = received_shards_ * s.shard_elements(), neighbours = begin_of_neighbours(s);
  const int64_t next = elements_of_owners(s);
  sends_.clear();
  for (const int64_t owner : own_owners()) {
    const ShardBorders part = part_of_owner(s, owner);
    const Tensor sums = part_of(staging.memory, at, at + count * elements_of(part));
    if (elements_of(part) > 0) add_node_values(exchange, {part, neighbours, next}, sums);
    if (owner != options_.rank && sums.numel() > 0) sends_.push_back({sums, static_cast<int>(owner)});
    at += sums.numel();
    neighbours += elements_of(part);
  }
  for (Transfer& transfer : staging.transfers) transfer.release();
  receives_.clear();
  int64_t shards = 0;
  for (const Value& value : round.values) {
    if (value.sender == node || s.shard_elements() == 0) continue;
    const Tensor place = part_of(staging.memory, shards * s.shard_elements(), (shards + 1) * s.shard_elements());
    ++shards;
    if (value.index > 0) {  // one message has all sums of a node
      Tensor& message = receives_.back().data;
      message = Tensor(message.data, DType::f32, {message.numel() + place.numel()});
    } else {
      receives_.push_back({place, static_cast<int>(plan_.nodes().speaker(value.sender, options_.rank))});
    }
  }
  LLMTRAIN_CHECK(shards <= received_shards_, "more sums of nodes arrive than were planned");
  staging.messages = gathers_.communicator().send_and_receive(sends_, receives_, stream);
  exchange.sent = true;
}

void GradientExchanges::add(Exchange& exchange) {
  const UnitSegment& s = units_[exchange.unit].segments[exchange.segment];
  const Round& round = *exchange.round;
  Staging& staging = staging_[exchange.staging];
  const ShardBorders own{s.begin - s.first, s.end - s.first};
  const int64_t shard = s.shard_elements(), node = by_node() ? plan_.nodes().node_of(options_.rank) : -1;
  if (by_node()) {
    if (!exchange.sent) send_node_sums(exchange);
    staging.messages.wait(*stream_, [this] { send_arrived(); });
  } else {
    for (Transfer& transfer : staging.transfers) transfer.wait(*stream_);
    lay_out_received(s, round, staging.memory);
  }
  groups_.clear();
  tensors_.clear();
  int64_t received = 0;
  const auto next = [&](int64_t i) { return part_of(staging.memory, i * shard, (i + 1) * shard); };
  for (const Value& value : round.values) {
    if (shard == 0) break;
    groups_.push_back(value.groups);
    if (by_node()) {
      const bool here = value.sender == node;
      tensors_.push_back(next(here ? received_shards_ + static_cast<int64_t>(value.index) : received++));
    } else if (value.sender == options_.rank) {
      tensors_.push_back(cut(staging.own[value.index], own));
    } else if (const void* direct = staging.transfers[value.index].contribution(static_cast<int>(value.sender))) {
      tensors_.emplace_back(const_cast<void*>(direct), DType::f32, std::initializer_list<int64_t>{shard});
    } else {
      tensors_.push_back(received_at(value.index, static_cast<int>(value.sender)));
    }
  }
  if (shard > 0 && !groups_.empty()) add_(exchange.unit, exchange.segment, groups_, tensors_);
  for (Transfer& transfer : staging.transfers) transfer.release();
  exchange.added = true;
}

void GradientExchanges::add_arrived() {
  send_arrived();
  for (Exchange& exchange : in_flight_) {
    if (exchange.added) continue;
    if ((by_node() && !exchange.sent) || pending(exchange)) return;
    add(exchange);
  }
}

bool GradientExchanges::oldest_is_complete() const {
  if (in_flight_.empty() || !in_flight_.front().added) return false;
  const Staging& staging = staging_[in_flight_.front().staging];
  return !staging.messages.is_read() &&
         std::ranges::none_of(staging.transfers, [](const Transfer& t) { return t.is_read(); });
}

GradientExchanges::Completed GradientExchanges::complete_oldest() {
  LLMTRAIN_CHECK(!in_flight_.empty(), "no exchange is in progress");
  Exchange& exchange = in_flight_.front();
  if (!exchange.added) add(exchange);
  Staging& staging = staging_[exchange.staging];
  for (Transfer& transfer : staging.transfers) transfer.finish(*stream_, [this] { add_arrived(); });
  staging.messages.finish(*stream_, [this] { add_arrived(); });
  const Completed completed{exchange.unit, exchange.segment};
  in_flight_.erase(in_flight_.begin());
  return completed;
}

}  // namespace llmtrain
