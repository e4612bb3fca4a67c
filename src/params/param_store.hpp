#pragma once
// Parameters, their gradients and optimizer state, sharded as in ZeRO (Rajbhandari et al. 2020). Models and optimizers
// see units; the stage is a private policy:
//   stage 0  every rank holds everything; gradient sums are gathered to all, all update alike
//   stage 1  the optimizer's states, the master weights among them, are sharded
//   stage 2  gradients too: a ring of unit buffers instead of a whole gradient
//   stage 3  weights too: gathered into a ring of unit buffers around their use
// The value of every parameter after a step is bit-identical for all stages, rank counts and offload settings: states,
// or the weights of stage 3, may be offloaded to a disk, from which they are read piece by piece.
//
// A large unit is divided into segments (UnitLayout). Each rank owns a part of every segment; gradients are exchanged
// and summed, and states updated, segment by segment, so that the buffers for these are small. Weights are gathered by
// unit.
//
// Units are trained or frozen (UnitSpec::trained). A frozen unit has weights in the compute dtype and nothing else:
// whole on every rank, or sharded at stage 3. It is neither reduced nor updated, and passes over the state skip it. A
// frozen unit with UnitSpec::quantization has the records of its chunks instead of weights, and tables of its slices,
// which every rank holds whole.
//
// A step has G reduction groups. Group g is computed by rank g mod W in round g / W; each rank runs every round, with
// or without a group of its own (idle passes take part in gathers and reductions). Within a group gradients accumulate
// in fp32. The owner of a shard adds the groups in the order of g: inside each of H blocks of consecutive groups, then
// over blocks. Group g of a full step of G groups is in block g * H / G; a shorter step omits the last groups.
//
//   reducer().begin_step(groups)
//   for round: reducer().begin_round(round)
//     for micro-batch slot: reducer().begin_micro_batch(first, last)
//       forward:  prefetch(u+1) acquire(u) weight(u, p) release(u)
//       backward: the same, and gradient(u, p) written, then reduce(u); matrices by RowBlocks in between
//   reducer().finish(); [norm]; update(work on shards)
//
// Calls that communicate (acquire, prefetch, reduce, finish, update, publish, initialize) must have the same order on
// every rank. RowBlocks communicate too: an idle rank calls join_reductions(u) where others write a unit's gradient,
// unless nothing else communicates before reduce(u).
//
// The parts own their memory and know only those before them: UnitStates (geometry, and what this rank stores),
// UnitGathers, GradientReducer, OffloadStore, StateStore, WeightRing.

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "core/arena.hpp"
#include "core/params.hpp"
#include "device/device.hpp"
#include "kernels/quantized_matrix.hpp"
#include "parallel/communicator.hpp"
#include "params/offload/offload_store.hpp"
#include "params/reduction/gradient_reducer.hpp"
#include "params/state_store.hpp"
#include "params/unit_gathers.hpp"
#include "params/unit_state.hpp"
#include "params/weight_ring.hpp"

namespace llmtrain {

class ParamStore {
 public:
  ParamStore(std::vector<UnitSpec> units, const ParamStoreOptions& options);
  ParamStore(const ParamStore&) = delete;
  ParamStore& operator=(const ParamStore&) = delete;

  /// Registers every buffer. A plan for any rank count needs no further call.
  void plan(Arena& arena);
  /// What lies elsewhere; its sizes are known after construction.
  OffloadStore& offload() { return offload_; }
  const OffloadStore& offload() const { return offload_; }
  /// Starts communication; called after the arena is committed. `ranks` are those with the same units, options.size;
  /// `job` all ranks, if these are more. `meanwhile` is called while a gather is awaited, since other ranks
  /// may wait for this one's share of a sum; not set: what adds the sums of this store.
  /// `sharing`: those that share experts.
  void start(Communicator& ranks, Stream& stream, Communicator* job = nullptr, Transfer::Meanwhile meanwhile = {},
             Communicator* sharing = nullptr);
  /// The ranks with the same units.
  Communicator& ranks() const { return gathers_.communicator(); }

  /// The units. Memory of frozen ones may be written through it: see UnitState::records() and SliceQuantizer.
  const UnitStates& units() const { return units_; }

  /// Initialises values as a function of (seed, slice name, element of the external tensor), then calls
  /// publish_weights(). `frozen` = false: those of trained units alone, not yet published.
  void initialize(uint64_t seed, bool frozen = true);

  // Weights. acquire waits for the gather; weight() is valid between acquire and release, in the compute dtype.
  void prefetch(int unit);
  void acquire(int unit);
  Tensor weight(int unit, int param) const { return weights_.weight(unit, param); }
  /// The same for a matrix of any storage.
  WeightMatrix matrix(int unit, int param) const { return weights_.matrix(unit, param); }
  void release(int unit) { weights_.release(unit); }

  /// The rounds and micro-batches of a step, and the end of its reductions. Gradients are written and reduced by the
  /// calls of this class, which first complete a deferred update.
  GradientReducer& reducer() { return reducer_; }
  const GradientReducer& reducer() const { return reducer_; }

  // Gradients of the current group, fp32, [rows, columns] or [rows].
  /// True if kernels add to gradient() (a later micro-batch of the group), false if they overwrite it. If false, a
  /// kernel that scatters must zero its tensor first.
  bool accumulate() const { return reducer_.accumulate(); }
  Tensor gradient(int unit, int param);
  /// Blocks of the rows of a gradient, in which a matrix with ParamSpec::by_rows is written: those of its segments,
  /// from the last to the first; all rows if the unit is not divided. The reduction of a segment starts, and its memory
  /// is free for the next one, when the next block is asked for in the last micro-batch of a group, provided that later
  /// matrices of the unit were written before.
  ///   for (ParamStore::RowBlocks blocks = store.row_blocks(unit, param); blocks.next();) ... blocks.gradient() ...
  using RowBlocks = GradientReducer::RowBlocks;
  RowBlocks row_blocks(int unit, int param);
  /// Takes part in the reductions that ranks with a group start in RowBlocks. Does nothing on such a rank.
  void join_reductions(int unit);
  /// Declares the unit's gradient of this micro-batch complete, and starts its reduction after the last one of the
  /// group. Does nothing for a frozen unit.
  void reduce(int unit);

  // Capture of a micro-batch's passes as a graph of the device.
  /// If the current micro-batch is one of those of GradientReducer::repeats(): a key that is equal for micro-batches
  /// whose passes do the same work. The first one of a step may contain a deferred update.
  std::optional<uint64_t> pass_key() const;
  /// Updates the state as if the passes had run, after their graph has been launched.
  void mark_passes_done();
  /// Restores the state before the micro-batch's passes, which were recorded, but have not run, and will.
  void repeat_micro_batch();

  using Shard = ParamShard;
  /// Offloaded tensors are empty in it; a StatePass provides them.
  Shard shard(int unit, size_t segment) const { return state_.shard(unit, segment); }

  using Access = StateAccess;
  /// A pass over this rank's part of every trained unit, segment by segment: whole if it lies in memory, else piece by
  /// piece, split at multiples of 256 elements, while the next ones are read and the last ones written. Changes are
  /// stored with `change` and `update`, once next() has returned false; `update` may return shards on_host. One pass at
  /// a time.
  ///   for (ParamStore::StatePass pass = store.state_pass(ParamStore::Access::all); pass.next();) ... pass.shard() ...
  using StatePass = StateStore::Pass;
  StatePass state_pass(Access access);

  /// Calls work(unit, shard) for this rank's parts of every trained unit, in a pass with Access::update, then publishes
  /// the weights. If the host makes the update of a GPU, the function may return before: each unit is then updated at
  /// the latest when it is acquired, while the device works on earlier ones.
  using ShardWork = std::function<void(int unit, const Shard& shard)>;
  void update(ShardWork work);
  /// Waits until no other rank reads this rank's masters: before they are changed outside of a pass.
  void begin_change();
  /// Completes a deferred update. Call it before reading or writing state; passes, gradients, and calls that gather or
  /// publish do so.
  void finish_update() { update_through(units_.size() - 1); }

  /// Copies a plane's values for elements [begin, begin + count) of a unit, all of them in one shard of this rank, from
  /// or to host memory: whole chunks, unless the plane has a value per element. Any thread may read while nothing is
  /// written. The master of a frozen unit is its weights, rounded when written; of a quantised one, dequantised and
  /// never written.
  void read_state(int unit, size_t plane, int64_t begin, int64_t count, void* out, Stream& stream) const;
  void write_state(int unit, size_t plane, int64_t begin, int64_t count, const void* values, Stream& stream);
  /// Recomputes this rank's weights from its masters; then call publish_weights().
  void round_masters();
  /// Distributes changed weights, after masters and shards of weights were changed, to every rank; also those of frozen
  /// units, after the owned() part was written.
  void publish_weights();
  /// Distributes masters and weights to all ranks after the owned() part of every master was written directly (padding
  /// left zero). Collective.
  void publish_masters();
  /// Copies elements [begin, end) of one of the model's units (UnitStates::model_units()) into `out` (fp32 master
  /// values, host memory) of the job's rank 0; on others that is memory of the same size. Collective over the job;
  /// owners send to the first of their ranks, and this one to rank 0.
  void gather_range(int model_unit, int64_t begin, int64_t end, float* out);

 private:
  /// An update whose units are processed on demand.
  struct LateUpdate {
    LateUpdate(StateStore& state, ShardWork given) : pass(state, Access::update), work(std::move(given)) {}
    StatePass pass;
    ShardWork work;
    int updated = 0;  ///< number of updated units
  };

  void update_through(int unit);
  void share_masters(int unit);
  void gather_from_owners(int unit, int64_t begin, int64_t end, float* out);

  UnitStates units_;
  const ParamStoreOptions& options_ = units_.options();
  const ParamPolicy& policy_ = units_.policy();
  UnitGathers gathers_;
  GradientReducer reducer_;
  OffloadStore offload_;
  StateStore state_;
  WeightRing weights_;
  Stream* stream_ = nullptr;
  Communicator* job_ = nullptr;
  std::optional<LateUpdate> late_update_;
};

}  // namespace llmtrain
