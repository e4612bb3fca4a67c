#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "params/unit_ring.hpp"
#include "params/unit_state.hpp"

namespace llmtrain {

/// The gathers of weights around their use at stage 3, by unit: the rules of WeightRing, on the order in which Decoder
/// uses its units.
class WeightRingUse {
 public:
  explicit WeightRingUse(const UnitStates& units) : units_(units), seen_(static_cast<size_t>(units.size())) {
    for (size_t ring = 0; ring < rings; ++ring) {
      std::vector<int64_t> sizes;
      for (const UnitState& u : units) sizes.push_back(!u.whole && ring_of(u) == ring ? u.stored_values() : 0);
      const bool keeps = units.options().keeps_gathered;
      plans_[ring] = plan_ring(sizes, std::vector<uint8_t>(sizes.size(), keeps ? 1 : 0));
      for (size_t i = 0; i < 2; ++i) slots_[2 * ring + i].values = plans_[ring].slots[i];
    }
    for (int unit = 0; unit < units.size(); ++unit) {
      if (unit == 0 || !units[unit].spec.same_layer_as_previous) layers_.emplace_back();
      layers_.back().push_back(unit);
    }
  }

  void begin_step() {
    for (Slot& slot : slots_) {
      if (slot.unit >= 0 && units_[slot.unit].trained()) slot = {slot.values};
    }
    for (int unit = 0; unit < units_.size(); ++unit) {
      if (units_[unit].trained()) seen_[static_cast<size_t>(unit)].gathered = false;
    }
  }
  /// A micro-batch: the forward pass, the head, the backward pass.
  void pass() {
    const size_t last = layers_.size() - 1;
    for (size_t layer = 0; layer <= last; ++layer) use(layer, layer + 1 < last ? layer + 1 : layer);
    const bool tied = units_[0].spec.spans_backward;
    use(tied ? 0 : last, last > 0 ? last - 1 : 0);
    for (size_t layer = last; layer > 0; --layer) {
      use(layer, std::max<size_t>(layer, 2) - 1);
      if (layer > 2 && layer < last) prefetch(layer - 2);
    }
  }
  int64_t gathers(int unit) const { return seen_[static_cast<size_t>(unit)].gathers; }
  /// Micro-batches after the second one gather what that gathers.
  void run_passes(int64_t count) {
    for (Unit& unit : seen_) unit.gathers = unit.before = 0;
    for (int64_t i = 0; i < std::min<int64_t>(count, 3); ++i) {
      for (Unit& unit : seen_) unit.before = unit.gathers;
      pass();
    }
    for (Unit& unit : seen_) unit.gathers += std::max<int64_t>(count - 3, 0) * (unit.gathers - unit.before);
  }

 private:
  static constexpr size_t rings = 3;
  struct Slot {
    int64_t values = 0;
    int unit = -1;
    bool reserved = false;
    int64_t last_use = 0;
  };
  struct Unit {
    bool gathered = false;
    int64_t gathers = 0, before = 0;
  };

  static size_t ring_of(const UnitState& u) { return u.quantized() ? 2 : u.spec.same_layer_as_previous ? 1 : 0; }

  void use(size_t layer, size_t next) {
    for (const int unit : layers_[layer]) acquire(unit);
    held_ = layer;
    if (next != layer) prefetch(next);
    held_ = layers_.size();
  }
  void prefetch(size_t layer) {
    for (const int unit : layers_[layer]) start(unit, false);
  }
  void acquire(int unit) {
    Slot* slot = start(unit, true);
    if (slot == nullptr) return;
    slot->reserved = false;
    slot->last_use = ++clock_;
  }
  bool is_held(int unit) const {
    return held_ < layers_.size() && std::ranges::find(layers_[held_], unit) != layers_[held_].end();
  }
  /// Returns the slot of the unit, or null if it has none.
  Slot* start(int unit, bool evict) {
    const UnitState& u = units_[unit];
    Unit& seen = seen_[static_cast<size_t>(unit)];
    if (u.whole || seen.gathered) return nullptr;
    const size_t ring = ring_of(u);
    if (plans_[ring].own[static_cast<size_t>(unit)] != 0) {
      seen.gathered = true;
      ++seen.gathers;
      return nullptr;
    }
    Slot* best = nullptr;
    for (Slot& slot : std::span(slots_).subspan(2 * ring, 2)) {
      if (slot.unit == unit) return &slot;
    }
    for (Slot& slot : std::span(slots_).subspan(2 * ring, 2)) {
      const bool held = slot.unit >= 0 && is_held(slot.unit);
      if (held || slot.values < u.stored_values() || (slot.reserved && !evict)) continue;
      if (best == nullptr || is_better(slot, *best)) best = &slot;
    }
    if (best == nullptr) return nullptr;
    ++seen.gathers;
    *best = {best->values, unit, true, best->last_use};
    return best;
  }
  static bool is_better(const Slot& a, const Slot& b) {
    if (a.reserved != b.reserved) return !a.reserved;
    if (a.values != b.values) return a.values < b.values;
    return a.last_use < b.last_use;
  }

  const UnitStates& units_;
  std::array<RingPlan, rings> plans_;
  std::array<Slot, 2 * rings> slots_;
  std::vector<std::vector<int>> layers_;  ///< units of each layer
  size_t held_ = 0;                       ///< layer that is in use
  std::vector<Unit> seen_;
  int64_t clock_ = 0;
};

}  // namespace llmtrain
