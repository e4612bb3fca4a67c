// Gradients, from the backward pass to the sums over groups. The owner of a shard adds in the order of groups, whatever
// arrives first.

#include <fmt/format.h>

#include <algorithm>

#include "kernels/elementwise.hpp"
#include "params/unit_state.hpp"

namespace llmtrain {

namespace {

/// Zeroes the padding between tensors, since kernels write tensors only and the buffer may have held another part.
void zero_padding(const UnitState& u, const GradientPart& part, const Tensor& flat, Stream& stream) {
  for (size_t p = 0; p < u.spec.params.size(); ++p) {
    const int64_t end = u.layout.offset(static_cast<int>(p)) + u.spec.params[p].numel();
    const int64_t padding = (chunk_elements - end % chunk_elements) % chunk_elements;
    if (padding == 0 || end < part.first || end >= part.last) continue;
    const Tensor gap = part_of(flat, end - part.first, end + padding - part.first);
    fill_zero(gap.data, gap.bytes(), stream);
  }
}

}  // namespace

/// Blocks are consecutive runs of groups of a full step, as equal as possible: a short step omits the last groups, and
/// no group changes its block.
int64_t ParamStore::State::block_of(int64_t group) const { return group * options.blocks / options.groups; }

/// Returns the group that this rank computes in a round, or -1.
int64_t ParamStore::State::group_of(int64_t of_round) const {
  const int64_t group = of_round * options.size + options.rank;
  return group < groups ? group : -1;
}

Tensor ParamStore::State::gradient_of(const GradientPart& part) const {
  if (!part.in_ring) return part.buffer;
  LLMTRAIN_CHECK(part.slot >= 0, "a gradient has no memory");
  return gradient_slots[static_cast<size_t>(part.slot)].buffer.rows(0, part.elements());
}

void ParamStore::State::take_gradient_slot(const UnitState& u, GradientPart& part) {
  for (;;) {
    GradientSlot* best = nullptr;
    for (GradientSlot& slot : gradient_slots) {
      if (slot.busy || slot.buffer.numel() < part.elements()) continue;
      if (best == nullptr || slot.buffer.numel() < best->buffer.numel()) best = &slot;
    }
    if (best != nullptr) {
      best->busy = true;
      part.slot = static_cast<int>(best - gradient_slots.data());
      if (best->part != &part) zero_padding(u, part, gradient_of(part), *stream);
      best->part = &part;
      return;
    }
    LLMTRAIN_CHECK(!in_flight.empty(),
                   fmt::format("no buffer is free for the gradient of {}: too many are open", u.spec.name));
    complete_oldest();
  }
}

/// Returns the memory of a part whose exchanges in the previous round are complete.
Tensor ParamStore::State::open_gradient(UnitState& u, GradientPart& part) {
  u.open = true;
  if (part.open) return gradient_of(part);
  LLMTRAIN_CHECK(round >= 0, "a gradient is written inside a round");
  while (part.exchanges > 0) complete_oldest();
  if (part.in_ring) take_gradient_slot(u, part);
  part.open = true;
  return gradient_of(part);
}

/// Frees the memory of a part unless it is written or read.
void ParamStore::State::free_gradient(GradientPart& part) {
  if (part.open || part.exchanges > 0 || part.slot < 0) return;
  gradient_slots[static_cast<size_t>(part.slot)].busy = false;
  part.slot = -1;
}

/// Fills `contributes` and `received`: the received shards of a segment's exchange, contiguous in a staging buffer.
void ParamStore::State::lay_out_exchange(const UnitSegment& s, int64_t of_round, size_t buffer) {
  int64_t pieces = 0;
  for (int r = 0; r < options.size; ++r) {
    const size_t i = static_cast<size_t>(r);
    contributes[i] = of_round * options.size + r < groups ? 1 : 0;
    received[i] = Tensor();
    if (contributes[i] == 0 || r == options.rank || s.shard_elements() == 0 || comm().reads_directly(r)) continue;
    received[i] = part_of(staging[buffer], pieces * s.shard_elements(), (pieces + 1) * s.shard_elements());
    ++pieces;
  }
  LLMTRAIN_CHECK(pieces <= policy.received_shards, "more gradients arrive than were planned");
}

void ParamStore::State::start_exchange(int unit, size_t segment) {
  UnitState& u = at(unit);
  const UnitSegment& s = u.segments[segment];
  GradientPart& part = u.part_of(s);
  const int64_t group = group_of(round);
  if (options.size == 1) {
    const Tensor gradient = gradient_of(part, s.first, s.last);
    if (!policy.gradient_is_sum) fold(s, group, {&gradient, 1});
    return;
  }
  if (in_flight.size() == staging.size()) complete_oldest();
  await_old_gathers();
  const Tensor send = group >= 0 ? gradient_of(part, s.first, s.last) : Tensor(nullptr, DType::f32, {s.elements()});
  lay_out_exchange(s, round, next_staging);
  in_flight.push_back(
      {unit, segment, round, next_staging, comm().exchange_shards(send, s.borders, received, contributes, *stream)});
  next_staging = (next_staging + 1) % staging.size();
  ++collectives;
  ++part.exchanges;
}

/// Receives prefetched weights before so many transfers have followed that other ranks wait for the place of this one
/// on the node's board (NodeMemory::slots).
void ParamStore::State::await_old_gathers() {
  constexpr int64_t most_behind = 24;
  for (size_t i = 0; i < units.size(); ++i) {
    const int64_t gathered = units[i].collective;
    if (gathered > 0 && collectives - gathered >= most_behind) await(static_cast<int>(i));
  }
}

/// Starts those of the unit's exchanges that are not among the first `count` yet started.
void ParamStore::State::start_exchanges(int unit, size_t count) {
  UnitState& u = at(unit);
  while (u.started < count) start_exchange(unit, u.order[u.started++]);
}

/// A segment's block of rows is written.
void ParamStore::State::end_rows(int unit, UnitSegment& s) {
  UnitState& u = at(unit);
  if (!last || u.by_rows == 0) return;
  s.written = true;
  while (u.started < u.by_rows && u.segments[u.order[u.started]].written) {
    const UnitSegment& next = u.segments[u.order[u.started]];
    start_exchanges(unit, u.started + 1);
    if (u.parts.size() == 1) continue;
    u.part_of(next).open = false;
    free_gradient(u.part_of(next));
  }
  complete_arrived();
}

/// Adds received gradients to the sums.
void ParamStore::State::add(GradientExchange& exchange) {
  UnitState& u = at(exchange.unit);
  const UnitSegment& s = u.segments[exchange.segment];
  exchange.transfer.wait(*stream);
  lay_out_exchange(s, exchange.round, exchange.staging);
  in_order.clear();
  for (int r = 0; r < options.size; ++r) {
    const size_t i = static_cast<size_t>(r);
    if (contributes[i] == 0 || s.shard_elements() == 0) continue;
    const void* direct = exchange.transfer.contribution(r);
    if (r == options.rank) {
      in_order.push_back(gradient_of(u.part_of(s), s.begin, s.end));
    } else if (direct != nullptr) {
      in_order.emplace_back(const_cast<void*>(direct), DType::f32, std::initializer_list<int64_t>{s.shard_elements()});
    } else {
      in_order.push_back(received[i]);
    }
  }
  fold(s, exchange.round * options.size, in_order);
  exchange.transfer.release();
  exchange.added = true;
}

/// Adds in the order of the exchanges, since a segment may be in two of them.
void ParamStore::State::add_arrived() {
  for (GradientExchange& exchange : in_flight) {
    if (exchange.added) continue;
    if (exchange.transfer.pending()) return;
    add(exchange);
  }
}

void ParamStore::State::complete_oldest() {
  GradientExchange& exchange = in_flight.front();
  if (!exchange.added) add(exchange);
  exchange.transfer.finish(*stream, [this] { add_arrived(); });
  UnitState& u = at(exchange.unit);
  GradientPart& part = u.part_of(u.segments[exchange.segment]);
  --part.exchanges;
  free_gradient(part);
  in_flight.erase(in_flight.begin());
}

/// Lets MPI make progress, and frees buffers as early as possible.
void ParamStore::State::complete_arrived() {
  add_arrived();
  while (!in_flight.empty() && in_flight.front().added && !in_flight.front().transfer.is_read()) complete_oldest();
}

/// Computes total = sum over blocks of (sum over the block's groups), each from the left. The first block is formed in
/// target. Gradients belong to consecutive groups, of which `group` is the first.
void ParamStore::State::fold(const UnitSegment& s, int64_t group, std::span<const Tensor> gradients) {
  while (!gradients.empty()) {
    const int64_t block = block_of(group);
    size_t count = 1;
    while (count < gradients.size() && block_of(group + static_cast<int64_t>(count)) == block) ++count;
    const std::span<const Tensor> of_block = gradients.first(count);
    const FoldTarget target = target_of(group, static_cast<int64_t>(count));
    if (target.to_total) {
      add_in_order(s.total, of_block, group == 0, *stream);
    } else {
      add_in_order(s.block, of_block, target.begins, *stream);
      if (target.ends) add_into(s.total, s.block, false, *stream);
    }
    gradients = gradients.subspan(count);
    group += static_cast<int64_t>(count);
  }
}

ParamStore::State::FoldTarget ParamStore::State::target_of(int64_t group, int64_t count) const {
  const int64_t block = block_of(group), next = group + count;
  const bool begins = group == 0 || block_of(group - 1) != block;
  const bool ends = next == groups || block_of(next) != block;
  return {block == 0 || (begins && ends && count == 1), begins, ends};
}

void ParamStore::State::gather_sums() {
  for (UnitState& u : units) {
    if (!u.trained()) continue;
    for (const UnitSegment& s : u.segments) {
      const Tensor mine = gradient_of(u.part_of(s), s.begin, s.end);
      copy_on_device(mine.data, s.total.data, mine.bytes(), *stream);
    }
  }
  gather_all([](const UnitState& u) { return u.parts.front().buffer; }, true);
  finish_gathers();
}

void ParamStore::begin_step(int64_t groups) {
  State& s = *state_;
  LLMTRAIN_CHECK(s.any_trained(), "a parameter store without gradients cannot be trained");
  LLMTRAIN_CHECK(groups >= 1 && groups <= s.options.groups,
                 fmt::format("a step of {} groups was planned for at most {}", groups, s.options.groups));
  LLMTRAIN_CHECK(s.in_flight.empty(), "a step begins before the last one's gradients are finished");
  s.groups = groups;
  s.round = -1;
  for (UnitState& u : s.units) u.reduced = 0;
}

int64_t ParamStore::rounds() const { return (state_->groups + state_->options.size - 1) / state_->options.size; }

int64_t ParamStore::begin_round(int64_t round) {
  LLMTRAIN_CHECK(round == state_->round + 1 && round < rounds(), fmt::format("round {} is not the next one", round));
  state_->round = round;
  begin_micro_batch(true, true);
  return state_->group_of(round);
}

void ParamStore::begin_micro_batch(bool first, bool last) {
  LLMTRAIN_CHECK((first && last) || state_->options.micro_batches_per_group > 1,
                 "groups were planned to have one micro-batch");
  state_->first = first;
  state_->last = last;
  // Passes that were recorded and are not launched have counted their reductions, and are begun again.
  for (UnitState& u : state_->units) u.reduced = std::min(u.reduced, state_->round);
}

bool ParamStore::accumulate() const { return !state_->first; }

Tensor ParamStore::gradient(int unit, int param) {
  finish_update();  // it reads the last step's gradient
  UnitState& u = state_->at(unit);
  LLMTRAIN_CHECK(u.trained(), fmt::format("{} is frozen and has no gradient", u.spec.name));
  const ParamSpec& spec = u.spec.params.at(static_cast<size_t>(param));
  LLMTRAIN_CHECK(u.by_rows == 0 || !spec.by_rows, spec.name + " is written by rows");
  const int64_t offset = u.layout.offset(param);
  GradientPart& part = *std::prev(std::ranges::upper_bound(u.parts, offset, {}, &GradientPart::first));
  LLMTRAIN_CHECK(offset + spec.numel() <= part.last, spec.name + " is larger than a segment");
  return parameter_view(u, state_->open_gradient(u, part), param, part.first);
}

ParamStore::RowBlocks::RowBlocks(ParamStore& store, int unit, int param) : store_(store), unit_(unit), param_(param) {
  store.finish_update();  // it reads the last step's gradient
  const UnitState& u = store.state_->at(unit);
  const ParamSpec& spec = u.spec.params.at(static_cast<size_t>(param));
  LLMTRAIN_CHECK(u.trained() && spec.by_rows, spec.name + " is frozen, or not written by rows");
  if (u.by_rows == 0) {
    segment_ = 1;
    return;
  }
  const int64_t first = u.layout.offset(param), last = first + spec.numel();
  while (u.segments[begin_].last <= first) ++begin_;
  segment_ = begin_;
  while (segment_ < u.segments.size() && u.segments[segment_].first < last) ++segment_;
}

bool ParamStore::RowBlocks::next() {
  State& s = *store_.state_;
  UnitState& u = s.at(unit_);
  if (written_) s.end_rows(unit_, u.segments[segment_]);
  if (segment_ == begin_) return false;
  const UnitSegment& segment = u.segments[--segment_];
  GradientPart& part = u.part_of(segment);
  const ParamSpec& spec = u.spec.params[static_cast<size_t>(param_)];
  const int64_t offset = u.layout.offset(param_);
  const int64_t first = std::max(segment.first, offset), last = std::min(segment.last, offset + spec.numel());
  first_row_ = (first - offset) / spec.columns;
  const Tensor flat = s.open_gradient(u, part).rows(first - part.first, last - first);
  gradient_ = flat.reshaped({(last - first) / spec.columns, spec.columns});
  written_ = true;
  return true;
}

void ParamStore::join_reductions(int unit) {
  State& s = *state_;
  UnitState& u = s.at(unit);
  if (!u.trained() || !s.last || s.group_of(s.round) >= 0) return;
  finish_update();
  s.start_exchanges(unit, u.by_rows);
}

void ParamStore::reduce(int unit) {
  State& s = *state_;
  UnitState& u = s.at(unit);
  if (!u.trained()) return;
  finish_update();
  s.complete_arrived();
  if (!s.last) return;
  LLMTRAIN_CHECK(u.reduced == s.round, fmt::format("{} is reduced once in a round", u.spec.name));
  LLMTRAIN_CHECK(u.open || s.group_of(s.round) < 0, fmt::format("{} has no gradient to reduce", u.spec.name));
  ++u.reduced;
  s.start_exchanges(unit, u.segments.size());
  u.started = 0;
  u.open = false;
  for (UnitSegment& segment : u.segments) segment.written = false;
  for (GradientPart& part : u.parts) {
    part.open = false;
    s.free_gradient(part);
  }
  s.complete_arrived();  // the last rank to arrive has all data at once
}

bool ParamStore::passes_repeat() const {
  // Buffers of a ring rotate alike in every pass if no transfer to other ranks is in flight.
  return state_->policy.whole_weights && (state_->options.size == 1 || state_->options.micro_batches_per_group > 2);
}

/// The first micro-batch of a group waits for the weights, and for exchanges of the previous round; the last one starts
/// the reduction. The first one of a step may contain a deferred update.
bool ParamStore::pass_is_replayable() const {
  const State& s = *state_;
  return passes_repeat() && !s.late_update && (s.options.size == 1 || (!s.first && !s.last && s.in_flight.empty()));
}

uint64_t ParamStore::pass_key() const {
  const State& s = *state_;
  const uint64_t key = (s.first ? 1u : 0u) | (s.last ? 2u : 0u);
  if (!s.last || s.policy.gradient_is_sum) return key;
  const int64_t group = s.group_of(s.round);
  const State::FoldTarget target = s.target_of(group, 1);
  return key | (group == 0 ? 4u : 0u) | (target.to_total ? 8u : 0u) | (target.begins ? 16u : 0u) |
         (target.ends ? 32u : 0u);
}

void ParamStore::mark_passes_done() {
  LLMTRAIN_CHECK(pass_is_replayable(), "these passes cannot be a graph");
  for (UnitState& u : state_->units) {
    if (!u.trained()) continue;
    u.open = !state_->last;
    for (GradientPart& part : u.parts) part.open = u.open;
    if (state_->last) ++u.reduced;
  }
}

void ParamStore::finish_gradients() {
  State& s = *state_;
  while (!s.in_flight.empty()) s.complete_oldest();
  for (const UnitState& u : s.units) {
    LLMTRAIN_CHECK(!u.trained() || u.reduced == rounds(),
                   fmt::format("{} was reduced in {} of {} rounds", u.spec.name, u.reduced, rounds()));
  }
  if (s.policy.gather_sums) s.gather_sums();
}

}  // namespace llmtrain
