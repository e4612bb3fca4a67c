#include "params/weight_ring.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace llmtrain {

WeightRing::WeightRing(const UnitStates& units, StateStore& state, UnitGathers& gathers)
    : units_(units), state_(state), gathers_(gathers), own_(static_cast<size_t>(units.size())) {
  find_rings();
  slots_.resize(2 * rings_.size());
  for (Ring& ring : rings_) {
    std::vector<int64_t> sizes;
    sizes.reserve(static_cast<size_t>(units.size()));
    for (int unit = 0; unit < units.size(); ++unit) {
      sizes.push_back(!units[unit].whole && ring_of(unit) == ring ? units[unit].stored_values() : 0);
    }
    ring.plan = plan_ring(sizes, std::vector<uint8_t>(sizes.size(), options_.keeps_gathered ? 1 : 0));
  }
}

void WeightRing::find_rings() {
  size_t places = 1, quantized = 0;                // of the layer so far
  size_t places_before = 1, quantized_before = 0;  // those before the units that it uses in turn
  for (int unit = 0; unit < units_.size(); ++unit) {
    const UnitState& u = units_[unit];
    const bool first = !u.spec.same_layer_as_previous;
    if (first) {
      places = 1;
      quantized = 0;
    }
    const bool in_turn = u.spec.expert_block >= 0;
    if (in_turn && units_[unit - 1].spec.expert_block < 0) {
      places_before = places;
      quantized_before = quantized;
    } else if (in_turn && !u.spec.has_same_blocks(units_[unit - 1].spec)) {
      places = places_before;
      quantized = quantized_before;
    }
    const Ring ring = u.quantized() ? Ring{true, quantized++} : Ring{false, first ? 0 : places++};
    const auto found = std::ranges::find(rings_, ring);
    at(unit).ring = static_cast<size_t>(found - rings_.begin());
    if (found == rings_.end()) rings_.push_back(ring);
  }
}

bool WeightRing::has_own_buffer(int unit) const { return ring_of(unit).plan.own[static_cast<size_t>(unit)] != 0; }

void WeightRing::plan(Arena& arena) {
  for (int unit = 0; unit < units_.size(); ++unit) {
    const UnitState& u = units_[unit];
    if (u.whole || !has_own_buffer(unit)) continue;
    arena.add(at(unit).buffer, MemoryCategory::weights, "weights of " + u.spec.name, u.storage.dtype,
              {u.stored_values()}, options_.exchanged());
  }
  for (size_t i = 0; i < slots_.size() && !policy_.whole_weights; ++i) {
    const Ring& ring = rings_[i / 2];
    const int64_t values = ring.plan.slots[i % 2];
    if (values == 0) continue;
    arena.add(slots_[i].buffer, MemoryCategory::weights, fmt::format("gathered weights {}", i),
              ring.quantized ? DType::u8 : options_.compute, {values}, options_.exchanged());
  }
}

/// Copies this rank's shard, rounded to the compute dtype, and gathers the others'.
void WeightRing::gather_into(int unit, const Tensor& buffer) {
  state_.copy_own_weights(unit, buffer);
  if (options_.size > 1) gathers_.begin(unit, buffer);
}

/// Chooses the best free slot: not one that holds a prefetched unit (those only with `evict`), then the smallest that
/// fits, then the least recently used. Returns -1 if none is free.
int WeightRing::choose_slot(int unit, bool evict) const {
  const auto better = [](const Slot& a, const Slot& b) {
    if (a.reserved != b.reserved) return !a.reserved;
    if (a.buffer.numel() != b.buffer.numel()) return a.buffer.numel() < b.buffer.numel();
    return a.last_use < b.last_use;
  };
  int best = -1;
  const size_t begin = 2 * at(unit).ring;
  for (size_t i = begin; i < begin + 2; ++i) {
    const Slot& slot = slots_[i];
    const bool held = slot.unit >= 0 && at(slot.unit).holders > 0;
    if (held || slot.buffer.numel() < units_[unit].stored_values() || (slot.reserved && !evict)) continue;
    if (best < 0 || better(slot, slots_[static_cast<size_t>(best)])) best = static_cast<int>(i);
  }
  return best;
}

void WeightRing::empty(Slot& slot) {
  if (slot.unit < 0) return;
  gathers_.finish(slot.unit);
  at(slot.unit).slot = -1;
  slot.unit = -1;
  slot.reserved = false;
}

/// Starts the gather of a unit's weights unless it has started; returns false if no slot is free.
bool WeightRing::start_gather(int unit, bool evict) {
  Unit& own = at(unit);
  if (own.gathered || own.slot >= 0) return true;
  if (has_own_buffer(unit)) {
    gather_into(unit, own.buffer);
    own.gathered = true;
    return true;
  }
  const int chosen = choose_slot(unit, evict);
  if (chosen < 0) return false;
  Slot& slot = slots_[static_cast<size_t>(chosen)];
  empty(slot);
  slot.unit = unit;
  slot.reserved = true;
  own.slot = chosen;
  gather_into(unit, whole_weights(unit));
  return true;
}

Tensor WeightRing::whole_weights(int unit) const {
  const UnitState& u = units_[unit];
  const Unit& own = at(unit);
  if (u.whole) return u.weights;
  if (has_own_buffer(unit)) return own.buffer;
  LLMTRAIN_CHECK(own.slot >= 0, fmt::format("the weights of {} are not gathered", u.spec.name));
  return slots_[static_cast<size_t>(own.slot)].buffer.rows(0, u.stored_values());
}

void WeightRing::prefetch(int unit) {
  if (!units_[unit].whole) start_gather(unit, false);
}

void WeightRing::acquire(int unit) {
  const UnitState& u = units_[unit];
  LLMTRAIN_CHECK(u.whole || start_gather(unit, true),
                 fmt::format("no buffer is free for the weights of {}: too many units are held", u.spec.name));
  gathers_.wait(unit);
  Unit& own = at(unit);
  if (own.slot >= 0) {
    Slot& slot = slots_[static_cast<size_t>(own.slot)];
    slot.reserved = false;
    slot.last_use = ++clock_;
  }
  ++own.holders;
}

/// Every product asks for its weights: large messages progress before it, not only from layer to layer.
Tensor WeightRing::held_weights(int unit) const {
  gathers_.progress();
  LLMTRAIN_CHECK(at(unit).holders > 0,
                 fmt::format("weights of {} used outside acquire and release", units_[unit].spec.name));
  return whole_weights(unit);
}

Tensor WeightRing::weight(int unit, int param) const {
  const UnitState& u = units_[unit];
  LLMTRAIN_CHECK(!u.quantized(), fmt::format("weights of {} are stored in fewer bits", u.spec.name));
  return u.view(held_weights(unit), param);
}

WeightMatrix WeightRing::matrix(int unit, int param) const {
  const UnitState& u = units_[unit];
  if (!u.quantized()) return weight(unit, param);
  const ParamSpec& spec = u.param(param);
  const auto* chunks = held_weights(unit).as<const uint8_t>();
  QuantizedMatrix matrix{*u.spec.quantization, spec.rows, spec.columns};
  for (const ParamSlice& slice : spec.slices) {
    const int i = matrix.count++;
    matrix.slices[static_cast<size_t>(i)] = {
        slice.first_row, slice.rows, 0, chunks + u.storage.values(u.layout.offset(param, i)),
        u.tables.empty() ? nullptr : u.tables.as<const float>() + u.table_offset(param, i)};
  }
  return {matrix, options_.compute};
}

void WeightRing::release(int unit) {
  LLMTRAIN_CHECK(at(unit).holders > 0, fmt::format("{} released more often than acquired", units_[unit].spec.name));
  --at(unit).holders;
}

void WeightRing::expect_unused() const {
  for (int unit = 0; unit < units_.size(); ++unit) {
    LLMTRAIN_CHECK(at(unit).holders == 0, fmt::format("{} is still in use at an update", units_[unit].spec.name));
  }
}

void WeightRing::forget(bool trained) {
  for (Slot& slot : slots_) {
    if (slot.unit >= 0 && units_[slot.unit].trained() == trained) empty(slot);
  }
  for (int unit = 0; unit < units_.size(); ++unit) {
    if (units_[unit].trained() != trained) continue;
    gathers_.finish(unit);
    at(unit).gathered = false;
  }
}

void WeightRing::publish(bool trained) {
  if (!policy_.whole_weights) return forget(trained);
  // Other gathers need not be waited for where nothing is gathered.
  const bool any = std::ranges::any_of(units_, [&](const UnitState& u) { return u.trained() == trained; });
  if (trained ? policy_.whole_state : !any || options_.size == 1) return;
  gathers_.gather_all(trained, [this](int unit) { return units_[unit].weights; });
}

void WeightRing::publish_units(int first, int last) {
  for (int unit = first; unit < last && policy_.whole_weights && !policy_.whole_state; ++unit) {
    if (units_[unit].trained()) gathers_.begin(unit, units_[unit].weights);
  }
}

}  // namespace llmtrain
