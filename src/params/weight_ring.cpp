// Weights around their use: stored whole, or gathered into a ring of two buffers. The choice of buffer depends only on
// the order of calls, so that every rank gathers in the same order.

#include <fmt/format.h>

#include <algorithm>

#include "core/activity.hpp"
#include "kernels/elementwise.hpp"
#include "params/unit_state.hpp"

namespace llmtrain {

/// Copies this rank's shard, rounded to the compute dtype, and gathers the others'.
void ParamStore::State::gather_into(int unit, const Tensor& buffer) {
  ++gathered_units;
  take_own_weights(unit, buffer);
  if (options.size > 1) gathers[static_cast<size_t>(unit)] = gather(at(unit), buffer);
}

/// Starts the gather of all segments.
Transfer ParamStore::State::gather(UnitState& u, const Tensor& buffer) {
  u.collective = ++collectives;
  return comm().all_gather(buffer, u.stored_borders, *stream);
}

/// Chooses the best free slot: not one that holds a prefetched unit (those only with `evict`), then the smallest that
/// fits, then the least recently used. Returns -1 if none is free.
int ParamStore::State::choose_weight_slot(const UnitState& u, bool evict) const {
  const auto better = [](const WeightSlot& a, const WeightSlot& b) {
    if (a.reserved != b.reserved) return !a.reserved;
    if (a.buffer.numel() != b.buffer.numel()) return a.buffer.numel() < b.buffer.numel();
    return a.last_use < b.last_use;
  };
  int best = -1;
  const int64_t values = u.storage.values(u.layout.elements());
  const size_t begin = 2 * ring_of(u);
  for (size_t i = begin; i < begin + 2; ++i) {
    const WeightSlot& slot = weight_slots[i];
    const bool held = slot.unit >= 0 && at(slot.unit).holders > 0;
    if (held || slot.buffer.numel() < values || (slot.reserved && !evict)) continue;
    if (best < 0 || better(slot, weight_slots[static_cast<size_t>(best)])) best = static_cast<int>(i);
  }
  return best;
}

/// Other ranks may wait for sums of this rank while it waits for their weights.
void ParamStore::State::await(int unit) {
  gathers[static_cast<size_t>(unit)].wait(*stream, [this] { add_arrived(); });
  at(unit).collective = 0;
}

/// Gathers the buffers of trained or frozen units to all ranks; finish_gathers() must precede any change of them. On
/// the host, whose ranks move the data themselves, the gathers complete here.
void ParamStore::State::gather_all(const std::function<Tensor(const UnitState&)>& buffer, bool trained) {
  constexpr size_t at_once = 16;  // far fewer than NodeMemory::slots
  finish_gathers();
  for (size_t i = 0; i < units.size(); ++i) {
    if (i >= at_once && device_memory_is_host()) gathers[i - at_once].finish(*stream);
    if (units[i].trained() == trained) gathers[i] = gather(units[i], buffer(units[i]));
  }
  if (device_memory_is_host()) finish_gathers();
}

void ParamStore::State::finish_gathers() {
  for (Transfer& gather : gathers) gather.finish(*stream);
}

void ParamStore::State::empty_weight_slot(WeightSlot& slot) {
  if (slot.unit < 0) return;
  gathers[static_cast<size_t>(slot.unit)].finish(*stream, [this] { add_arrived(); });
  at(slot.unit).weight_slot = -1;
  slot.unit = -1;
  slot.reserved = false;
}

/// Starts the gather of a unit's weights unless it has started; returns false if no slot is free.
bool ParamStore::State::start_gather(int unit, bool evict) {
  UnitState& u = at(unit);
  if (u.gathered || u.weight_slot >= 0) return true;
  if (has_own_buffer(unit)) {
    gather_into(unit, u.weights);
    u.gathered = true;
    return true;
  }
  const int chosen = choose_weight_slot(u, evict);
  if (chosen < 0) return false;
  WeightSlot& slot = weight_slots[static_cast<size_t>(chosen)];
  empty_weight_slot(slot);
  slot.unit = unit;
  slot.reserved = true;
  u.weight_slot = chosen;
  gather_into(unit, whole_weights(u));
  return true;
}

Tensor ParamStore::State::whole_weights(const UnitState& u) const {
  if (!u.weights.empty()) return u.weights;
  LLMTRAIN_CHECK(u.weight_slot >= 0, fmt::format("the weights of {} are not gathered", u.spec.name));
  return weight_slots[static_cast<size_t>(u.weight_slot)].buffer.rows(0, u.storage.values(u.layout.elements()));
}

/// Gathered weights of trained, or of frozen units have changed.
void ParamStore::State::forget_gathered(bool trained) {
  for (WeightSlot& slot : weight_slots) {
    if (slot.unit >= 0 && at(slot.unit).trained() == trained) empty_weight_slot(slot);
  }
  for (size_t i = 0; i < units.size(); ++i) {
    if (units[i].trained() != trained) continue;
    gathers[i].finish(*stream);
    units[i].gathered = false;
  }
}

void ParamStore::prefetch(int unit) {
  state_->complete_arrived();
  state_->update_through(unit);
  if (!state_->whole_weights_of(state_->at(unit))) state_->start_gather(unit, false);
}

void ParamStore::acquire(int unit) {
  report_progress();
  State& s = *state_;
  UnitState& u = s.at(unit);
  s.complete_arrived();
  s.update_through(unit);
  LLMTRAIN_CHECK(s.whole_weights_of(u) || s.start_gather(unit, true),
                 fmt::format("no buffer is free for the weights of {}: too many units are held", u.spec.name));
  s.await(unit);
  if (u.weight_slot >= 0) {
    WeightSlot& slot = s.weight_slots[static_cast<size_t>(u.weight_slot)];
    slot.reserved = false;
    slot.last_use = ++s.clock;
  }
  ++u.holders;
}

Tensor ParamStore::weight(int unit, int param) const {
  const UnitState& u = state_->at(unit);
  LLMTRAIN_CHECK(u.holders > 0, fmt::format("weights of {} used outside acquire and release", u.spec.name));
  LLMTRAIN_CHECK(!u.quantized(), fmt::format("weights of {} are stored in fewer bits", u.spec.name));
  return parameter_view(u, state_->whole_weights(u), param);
}

WeightMatrix ParamStore::matrix(int unit, int param) const {
  const UnitState& u = state_->at(unit);
  if (!u.quantized()) return weight(unit, param);
  LLMTRAIN_CHECK(u.holders > 0, fmt::format("weights of {} used outside acquire and release", u.spec.name));
  const ParamSpec& spec = u.spec.params.at(static_cast<size_t>(param));
  const auto* chunks = state_->whole_weights(u).as<const uint8_t>();
  QuantizedMatrix matrix{*u.spec.quantization, spec.rows, spec.columns};
  for (const ParamSlice& slice : spec.slices) {
    const int i = matrix.count++;
    matrix.slices[static_cast<size_t>(i)] = {
        slice.first_row, slice.rows, 0, chunks + u.storage.values(u.layout.offset(param, i)),
        u.tables.empty() ? nullptr : u.tables.as<const float>() + u.table_offset(param, i)};
  }
  return {matrix, state_->options.compute};
}

void ParamStore::release(int unit) {
  UnitState& u = state_->at(unit);
  LLMTRAIN_CHECK(u.holders > 0, fmt::format("{} released more often than acquired", u.spec.name));
  --u.holders;
}

void ParamStore::State::expect_unused() const {
  for (const UnitState& u : units) {
    LLMTRAIN_CHECK(u.holders == 0, fmt::format("{} is still in use at an update", u.spec.name));
  }
}

void ParamStore::publish_weights() {
  finish_update();
  State& s = *state_;
  s.expect_unused();
  s.publish_trained();
  if (!s.policy.whole_weights) return s.forget_gathered(false);
  // The gathers of trained units need not be waited for where nothing is frozen.
  const bool frozen = std::ranges::any_of(s.units, [](const UnitState& u) { return !u.trained(); });
  if (frozen && s.options.size > 1) s.gather_all([](const UnitState& u) { return u.weights; }, false);
}

/// Distributes the weights of trained units after a change of their masters and shards.
void ParamStore::State::publish_trained() {
  if (!policy.whole_weights) return forget_gathered(true);
  if (!policy.whole_state) gather_all([](const UnitState& u) { return u.weights; }, true);
}

}  // namespace llmtrain
