#pragma once
#include <cstdint>

#include "core/arena.hpp"
#include "device/device.hpp"
#include "params/offload/offload_store.hpp"
#include "params/reduction/gradient_reducer.hpp"
#include "params/unit_gathers.hpp"
#include "params/unit_state.hpp"

namespace llmtrain {

/// Access of a pass to the state. Tensors that it does not need are empty or undefined.
enum class StateAccess : uint8_t { masters, all, change, update };

/// The state of trained units and the weights that this rank keeps, wherever they lie.
class StateStore {
 public:
  StateStore(UnitStates& units, OffloadStore& offload, const GradientReducer& reducer, UnitGathers& gathers)
      : units_(units), offload_(offload), reducer_(reducer), gathers_(gathers) {}
  void plan_weights(Arena& arena);
  void plan_states(Arena& arena);
  void start(Stream& stream);

  /// Offloaded tensors are empty in it; a Pass provides them.
  ParamShard shard(int unit, size_t segment) const;
  /// Copies this rank's part of gathered weights, rounded to the compute dtype, into a buffer of the whole unit.
  void copy_own_weights(int unit, const Tensor& buffer);
  /// See ParamStore::read_state().
  void read(int unit, size_t plane, int64_t begin, int64_t count, void* out, Stream& stream) const;
  void write(int unit, size_t plane, int64_t begin, int64_t count, const void* values, Stream& stream);

  /// See ParamStore::state_pass().
  class Pass {
   public:
    Pass(StateStore& store, StateAccess access);
    ~Pass();
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;
    bool next();
    int unit() const { return unit_; }
    size_t segment() const { return segment_; }
    const ParamShard& shard() const { return shard_; }

   private:
    bool next_whole();
    bool next_piece();
    void leave_piece();
    bool changes() const { return access_ == StateAccess::change || access_ == StateAccess::update; }
    const OffloadPiece& piece(size_t index) const { return store_.offload_.layout().pieces()[index]; }
    ParamShard resident_part(size_t index) const;

    StateStore& store_;
    StateAccess access_;
    bool pieces_;     ///< the state is offloaded
    bool on_device_;  ///< a GPU's kernels work on copies of the pieces
    int64_t piece_ = -1;
    int unit_ = -1;
    size_t segment_ = 0;
    ParamShard shard_{};
  };

 private:
  void plan_states(Arena& arena, const UnitState& u, UnitSegment& s);
  bool is_rounded_only(const UnitState& u) const { return !u.trained() && !policy_.own_master; }
  void expect_state(const UnitState& u, size_t plane, int64_t begin, int64_t count) const;
  /// Values of a plane that is not offloaded.
  Tensor resident(const UnitState& u, size_t plane, int64_t begin, int64_t count) const;

  UnitStates& units_;
  const ParamStoreOptions& options_ = units_.options();
  const ParamPolicy& policy_ = units_.policy();
  OffloadStore& offload_;
  const GradientReducer& reducer_;
  UnitGathers& gathers_;
  Stream* stream_ = nullptr;
};

}  // namespace llmtrain
