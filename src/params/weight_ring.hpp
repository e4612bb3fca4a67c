#pragma once
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
  /// Units of a layer are held together: rings of a layer's first units, of the second ones, of those in fewer bits;
  /// then of further ones, if a layer has more. Units that a layer uses in turn have the same rings.
  struct Ring {
    bool quantized;
    size_t place;  ///< in a layer, among those in fewer bits or the others
    RingPlan plan = {};

    bool operator==(const Ring& other) const { return quantized == other.quantized && place == other.place; }
  };
  struct Slot {
    Tensor buffer;
    int unit = -1;
    bool reserved = false;  ///< prefetched, not yet acquired
    int64_t last_use = 0;
  };
  struct Unit {
    Tensor buffer;    ///< outside the ring, if has_own_buffer()
    int holders = 0;  ///< number of acquire() calls without release()
    size_t ring = 0;
    int slot = -1;          ///< ring slot that holds or receives the weights
    bool gathered = false;  ///< the buffer holds or receives them
  };

  void find_rings();
  const Ring& ring_of(int unit) const { return rings_[at(unit).ring]; }
  bool has_own_buffer(int unit) const;
  bool start_gather(int unit, bool evict);
  void gather_into(int unit, const Tensor& buffer);
  int choose_slot(int unit, bool evict) const;
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
  std::vector<Ring> rings_ = {{false, 0}, {false, 1}, {true, 0}};
  std::vector<Slot> slots_;  ///< two of each ring
  std::vector<Unit> own_;    ///< by unit
  int64_t clock_ = 0;
};

}  // namespace llmtrain
