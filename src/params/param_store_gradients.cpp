// Gradients, from the backward pass to the sums over groups. The owner of a shard adds in the order of groups, whatever
// arrives first.

#include <fmt/format.h>

#include <algorithm>

#include "kernels/elementwise.hpp"
#include "params/param_store_state.hpp"

namespace llmtrain {

namespace {

/// Zeroes the padding between tensors, since kernels write tensors only and the buffer may have held another unit.
void zero_padding(const UnitState& u, const Tensor& flat, Stream& stream) {
  for (size_t p = 0; p < u.spec.params.size(); ++p) {
    const int64_t end = u.layout.offset(static_cast<int>(p)) + u.spec.params[p].numel();
    const int64_t padding = (chunk_elements - end % chunk_elements) % chunk_elements;
    if (padding == 0) continue;
    const Tensor gap = part_of(flat, end, end + padding);
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

bool ParamStore::State::is_in_flight(int unit) const {
  return std::any_of(in_flight.begin(), in_flight.end(), [&](const GradientExchange& e) { return e.unit == unit; });
}

Tensor ParamStore::State::whole_gradient(const UnitState& u) const {
  if (!u.gradient.empty()) return u.gradient;
  LLMTRAIN_CHECK(u.gradient_slot >= 0, fmt::format("{} has no gradient", u.spec.name));
  return gradient_slots[static_cast<size_t>(u.gradient_slot)].buffer.rows(0, u.layout.elements());
}

void ParamStore::State::take_gradient_slot(UnitState& u, int unit) {
  for (;;) {
    GradientSlot* best = nullptr;
    for (GradientSlot& slot : gradient_slots) {
      if (slot.busy || slot.buffer.numel() < u.layout.elements()) continue;
      if (best == nullptr || slot.buffer.numel() < best->buffer.numel()) best = &slot;
    }
    if (best != nullptr) {
      best->busy = true;
      u.gradient_slot = static_cast<int>(best - gradient_slots.data());
      if (best->unit != unit) zero_padding(u, whole_gradient(u), *stream);
      best->unit = unit;
      return;
    }
    LLMTRAIN_CHECK(!in_flight.empty(),
                   fmt::format("no buffer is free for the gradient of {}: too many units are open", u.spec.name));
    complete_oldest();
  }
}

void ParamStore::State::open_gradient(int unit) {
  UnitState& u = at(unit);
  LLMTRAIN_CHECK(round >= 0, "a gradient is written inside a round");
  while (is_in_flight(unit)) complete_oldest();
  if (u.gradient.empty()) take_gradient_slot(u, unit);
  u.open = true;
}

void ParamStore::State::free_gradient(UnitState& u) {
  if (u.gradient_slot >= 0) gradient_slots[static_cast<size_t>(u.gradient_slot)].busy = false;
  u.gradient_slot = -1;
}

/// Fills `contributes` and `received`: the received shards of a unit's exchange, contiguous in a staging buffer.
void ParamStore::State::lay_out_exchange(const UnitState& u, int64_t of_round, size_t buffer) {
  int64_t pieces = 0;
  for (int r = 0; r < options.size; ++r) {
    const size_t i = static_cast<size_t>(r);
    contributes[i] = of_round * options.size + r < groups ? 1 : 0;
    received[i] = Tensor();
    if (contributes[i] == 0 || r == options.rank || u.shard_elements() == 0 || comm().reads_directly(r)) continue;
    received[i] = part_of(staging[buffer], pieces * u.shard_elements(), (pieces + 1) * u.shard_elements());
    ++pieces;
  }
  LLMTRAIN_CHECK(pieces <= policy.received_shards, "more gradients arrive than were planned");
}

void ParamStore::State::start_exchange(int unit) {
  UnitState& u = at(unit);
  const int64_t group = group_of(round);
  if (options.size == 1) {
    const Tensor gradient = whole_gradient(u);
    if (!policy.gradient_is_sum) fold(unit, group, {&gradient, 1});
    return free_gradient(u);
  }
  if (in_flight.size() == staging.size()) complete_oldest();
  const Tensor send = group >= 0 ? whole_gradient(u) : Tensor(nullptr, DType::f32, {u.layout.elements()});
  lay_out_exchange(u, round, next_staging);
  in_flight.push_back(
      {unit, round, next_staging, comm().exchange_shards(send, u.borders, received, contributes, *stream)});
  next_staging = (next_staging + 1) % staging.size();
}

/// Adds received gradients to the sums.
void ParamStore::State::add(GradientExchange& exchange) {
  UnitState& u = at(exchange.unit);
  exchange.transfer.wait(*stream);
  lay_out_exchange(u, exchange.round, exchange.staging);
  in_order.clear();
  for (int r = 0; r < options.size; ++r) {
    const size_t i = static_cast<size_t>(r);
    if (contributes[i] == 0 || u.shard_elements() == 0) continue;
    const void* direct = exchange.transfer.contribution(r);
    if (r == options.rank) {
      in_order.push_back(part_of(whole_gradient(u), u.begin, u.end));
    } else if (direct != nullptr) {
      in_order.emplace_back(const_cast<void*>(direct), DType::f32, std::initializer_list<int64_t>{u.shard_elements()});
    } else {
      in_order.push_back(received[i]);
    }
  }
  fold(exchange.unit, exchange.round * options.size, in_order);
  exchange.transfer.release();
  exchange.added = true;
}

/// Adds in the order of the exchanges, since a unit may be in two of them.
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
  free_gradient(at(exchange.unit));
  in_flight.erase(in_flight.begin());
}

/// Lets MPI make progress, and frees buffers as early as possible.
void ParamStore::State::complete_arrived() {
  add_arrived();
  while (!in_flight.empty() && in_flight.front().added && !in_flight.front().transfer.is_read()) complete_oldest();
}

/// Computes total = sum over blocks of (sum over the block's groups), each from the left. The first block is formed in
/// target. Gradients belong to consecutive groups, of which `group` is the first.
void ParamStore::State::fold(int unit, int64_t group, std::span<const Tensor> gradients) {
  UnitState& u = at(unit);
  while (!gradients.empty()) {
    const int64_t block = block_of(group);
    size_t count = 1;
    while (count < gradients.size() && block_of(group + static_cast<int64_t>(count)) == block) ++count;
    const std::span<const Tensor> of_block = gradients.first(count);
    const FoldTarget target = target_of(group, static_cast<int64_t>(count));
    if (target.to_total) {
      add_in_order(u.total, of_block, group == 0, *stream);
    } else {
      add_in_order(u.block, of_block, target.begins, *stream);
      if (target.ends) add_into(u.total, u.block, false, *stream);
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
    const Tensor mine = part_of(u.gradient, u.begin, u.end);
    copy_on_device(mine.data, u.total.data, mine.bytes(), *stream);
  }
  gather_all(&UnitState::gradient, true);
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
}

bool ParamStore::accumulate() const { return !state_->first; }

Tensor ParamStore::gradient(int unit, int param) {
  finish_update();  // it reads the last step's gradient
  UnitState& u = state_->at(unit);
  LLMTRAIN_CHECK(u.trained(), fmt::format("{} is frozen and has no gradient", u.spec.name));
  if (!u.open) state_->open_gradient(unit);
  return parameter_view(u, state_->whole_gradient(u), param);
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
  s.start_exchange(unit);
  u.open = false;
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
