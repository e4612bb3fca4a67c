#pragma once
#include <array>
#include <cstdint>
#include <vector>

#include "core/arena.hpp"
#include "kernels/quantized_matrix.hpp"
#include "params/state_store.hpp"
#include "params/unit_gathers.hpp"
#include "params/unit_ring.hpp"
#include "params/unit_state.hpp"

namespace llmtrain {

/// Weights around their use: those that are stored whole, or gathered into rings of two buffers. The choice of buffer
/// depends only on the order of calls, so that every rank gathers in the same order. ParamStore documents the calls.
class WeightRing {
 public:
  WeightRing(const UnitStates& units, StateStore& state, UnitGathers& gathers);
  void plan(Arena& arena);

  void prefetch(int unit);
  void acquire(int unit);
  void release(int unit);
  Tensor weight(int unit, int param) const;
  WeightMatrix matrix(int unit, int param) const;
  /// Throws Error if a unit is acquired.
  void expect_unused() const;
  /// Distributes weights of trained, or of frozen units after a change of this rank's shards: gathers those that are
  /// stored whole, and forgets others that were gathered.
  void publish(bool trained);
  /// Starts this for trained units [first, last) alone if they are stored whole.
  void publish_units(int first, int last);
  /// Forgets gathered weights, which have changed or will.
  void forget(bool trained);

 private:
  /// Rings: of a layer's first unit, of the others of a layer, and of those in fewer bits.
  static constexpr size_t rings = 3;
  struct Slot {
    Tensor buffer;
    int unit = -1;
    bool reserved = false;  ///< prefetched, not yet acquired
    int64_t last_use = 0;
  };
  struct Unit {
    Tensor buffer;          ///< outside the ring, if has_own_buffer()
    int holders = 0;        ///< number of acquire() calls without release()
    int slot = -1;          ///< ring slot that holds or receives the weights
    bool gathered = false;  ///< the buffer holds or receives them
  };

  static size_t ring_of(const UnitState& u);
  bool has_own_buffer(int unit) const;
  bool start_gather(int unit, bool evict);
  void gather_into(int unit, const Tensor& buffer);
  int choose_slot(const UnitState& u, bool evict) const;
  void empty(Slot& slot);
  Tensor whole_weights(int unit) const;
  Tensor held_weights(int unit) const;
  Unit& at(int unit) { return own_[static_cast<size_t>(unit)]; }
  const Unit& at(int unit) const { return own_[static_cast<size_t>(unit)]; }

  const UnitStates& units_;
  const ParamStoreOptions& options_ = units_.options();
  const ParamPolicy& policy_ = units_.policy();
  StateStore& state_;
  UnitGathers& gathers_;
  std::array<RingPlan, rings> plans_;
  std::array<Slot, 2 * rings> slots_;
  std::vector<Unit> own_;  ///< by unit
  int64_t clock_ = 0;
};

}  // namespace llmtrain
