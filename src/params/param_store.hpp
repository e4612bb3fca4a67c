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
//   begin_step(groups)
//   for round: begin_round(round)
//     for micro-batch slot: begin_micro_batch(first, last); again if passes were recorded, but not launched
//       forward:  prefetch(u+1) acquire(u) weight(u, p) release(u)
//       backward: the same, and gradient(u, p) written, then reduce(u); matrices by RowBlocks in between
//   finish_gradients(); [norm]; update(work on shards)
//
// Calls that communicate (acquire, prefetch, reduce, finish, update, publish, initialize) must have the same order on
// every rank. RowBlocks communicate too: an idle rank calls join_reductions(u) where others write a unit's gradient,
// unless nothing else communicates before reduce(u).

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/arena.hpp"
#include "core/params.hpp"
#include "device/device.hpp"
#include "kernels/quantized_matrix.hpp"
#include "parallel/communicator.hpp"
#include "parallel/parallel_config.hpp"
#include "params/unit_layout.hpp"
#include "params/unit_planes.hpp"

namespace llmtrain {

struct ParamStoreOptions {
  DType compute = DType::f32;  ///< dtype of weights seen by kernels; fp32 weights are their own master
  int zero_stage = 1;
  int rank = 0;  ///< given explicitly, so that a plan for any rank count needs no MPI
  int size = 1;
  int node_size = 1;   ///< ranks, this one included, that read each other's buffers directly
  int64_t groups = 1;  ///< reduction groups of a full step (G)
  int64_t blocks = 1;  ///< reduction blocks (H)
  int64_t micro_batches_per_group = 1;
  Offload offload_optimizer = Offload::none;   ///< states; the master only if it is separate from the weights
  Offload offload_parameters = Offload::none;  ///< weights of trained units, at stage 3
  std::string offload_path = {};               ///< folder on a local disk, for Offload::nvme
  int64_t offload_piece = int64_t{1} << 18;    ///< elements per transfer; a multiple of 256
  StatePlanes states = master_and_moments();   ///< the optimizer's
  int64_t segment_elements = default_segment_elements;
  /// Stage 3: weights are gathered once between two updates, into memory for all of them.
  bool keeps_gathered = false;
};

class ParamStore {
 public:
  ParamStore(std::vector<UnitSpec> units, const ParamStoreOptions& options);
  ~ParamStore();
  ParamStore(const ParamStore&) = delete;
  ParamStore& operator=(const ParamStore&) = delete;

  /// Registers every buffer. A plan for any rank count needs no further call.
  void plan(Arena& arena);
  /// Bytes of this rank on a disk; known after construction.
  int64_t offloaded_bytes() const;
  /// Creates the file on the disk, if any; start() does so if this was not called. UserError when space is missing.
  void reserve_disk();
  /// Bytes of this rank in pinned host memory beside the plan; only for a GPU.
  int64_t pinned_bytes() const;
  /// Starts communication; called after the arena is committed. communicator.size() must be options.size.
  void start(Communicator& communicator, Stream& stream);

  int rank_count() const;
  int unit_count() const;
  const UnitSpec& spec(int unit) const;
  const UnitLayout& layout(int unit) const;
  int64_t parameter_count() const;          ///< padding excluded
  int64_t trained_parameter_count() const;  ///< of trained units, without fixed slices
  bool trained(int unit) const { return spec(unit).trained; }
  bool keeps_gathered() const;
  int64_t gathers() const;  ///< number of gathers of a unit's weights around their use so far

  /// Initialises values as a function of (seed, slice name, element), then calls publish_weights(). `frozen` = false:
  /// those of trained units alone, not yet published.
  void initialize(uint64_t seed, bool frozen = true);

  // Weights. acquire waits for the gather; weight() is valid between acquire and release, in the compute dtype.
  void prefetch(int unit);
  void acquire(int unit);
  Tensor weight(int unit, int param) const;
  /// The same for a matrix of any storage.
  WeightMatrix matrix(int unit, int param) const;
  void release(int unit);

  // Gradients of the current group, fp32, [rows, columns] or [rows].
  void begin_step(int64_t groups);
  int64_t rounds() const;
  /// Returns the group that this rank computes in the round, or -1.
  int64_t begin_round(int64_t round);
  void begin_micro_batch(bool first, bool last);
  /// True if kernels add to gradient() (a later micro-batch of the group), false if they overwrite it. If false, a
  /// kernel that scatters must zero its tensor first.
  bool accumulate() const;
  Tensor gradient(int unit, int param);
  /// Blocks of the rows of a gradient, in which a matrix with ParamSpec::by_rows is written: those of its segments,
  /// from the last to the first; all rows if the unit is not divided. The reduction of a segment starts, and its memory
  /// is free for the next one, when the next block is asked for in the last micro-batch of a group, provided that later
  /// matrices of the unit were written before.
  ///   for (ParamStore::RowBlocks blocks(store, unit, param); blocks.next();) ... blocks.gradient() ...
  class RowBlocks {
   public:
    RowBlocks(ParamStore& store, int unit, int param);
    bool next();
    const Tensor& gradient() const { return gradient_; }  ///< fp32 [rows of the block, columns]
    int64_t first_row() const { return first_row_; }

   private:
    ParamStore& store_;
    int unit_, param_;
    size_t begin_ = 0, segment_ = 0;
    bool written_ = false;
    Tensor gradient_{};
    int64_t first_row_ = 0;
  };
  /// Takes part in the reductions that ranks with a group start in RowBlocks. Does nothing on such a rank.
  void join_reductions(int unit);
  /// Declares the unit's gradient of this micro-batch complete, and starts its reduction after the last one of the
  /// group. Does nothing for a frozen unit.
  void reduce(int unit);
  /// Waits until every shard holds the sum over all groups.
  void finish_gradients();

  // Capture of a micro-batch's passes as a graph of the device.
  /// True if passes use only this rank's device, and the same buffers each time: with whole weights, all passes on one
  /// rank; on several ranks those between the first and the last one of a group.
  bool passes_repeat() const;
  /// True if this holds for the current micro-batch.
  bool pass_is_replayable() const;
  /// Key that is equal for micro-batches whose passes do the same work.
  uint64_t pass_key() const;
  /// Updates the state as if the passes had run, after their graph has been launched.
  void mark_passes_done();

  /// The elements [begin, end) of a flat unit, of one segment, that this rank updates or, if it is frozen, stores for
  /// all ranks. Stage 0: the whole segment.
  struct Shard {
    int64_t begin = 0;
    int64_t end = 0;
    /// Planes of the state; frozen: empty, except that the master is the weights if they are fp32.
    std::array<Tensor, max_state_planes> states = {};
    Tensor gradient = {};  ///< fp32, sum over groups after finish_gradients(); frozen: empty
    /// this range in the compute dtype if it is stored separately, else empty; a writer of the master must write it too
    /// (adamw_update does)
    Tensor weights = {};
    bool on_host = false;                ///< true if the tensors are in host memory although the device has its own
    const UnitPlanes* planes = nullptr;  ///< of the unit; null: the planes have as many values in every chunk
    const Tensor& master() const { return states[master_plane]; }
    /// The tensors' values for elements [first, last) only: whole chunks where a tensor has values of chunks.
    Shard part(int64_t first, int64_t last) const;
    UnitRange part_of(const UnitRange& range) const {
      return {std::max(begin, range.begin), std::min(end, range.end), range.decay, range.lr_scale};
    }
  };
  int64_t segment_elements() const;
  size_t segment_count(int unit) const;
  /// Offloaded tensors are empty in it; a StatePass provides them.
  Shard shard(int unit, size_t segment) const;

  /// Access of a pass to the state. Tensors that it does not need are empty or undefined.
  enum class Access : uint8_t { masters, all, change, update };
  /// A pass over this rank's part of every trained unit, segment by segment: whole if it lies in memory, else piece by
  /// piece, split at multiples of 256 elements, while the next ones are read and the last ones written. Changes are
  /// stored with `change` and `update`, once next() has returned false; `update` may return shards on_host. One pass at
  /// a time.
  ///   for (ParamStore::StatePass pass(store, ParamStore::Access::update); pass.next();) ... pass.shard() ...
  class StatePass {
   public:
    StatePass(ParamStore& store, Access access);
    ~StatePass();
    StatePass(const StatePass&) = delete;
    StatePass& operator=(const StatePass&) = delete;
    bool next();
    int unit() const { return unit_; }
    size_t segment() const { return segment_; }
    const Shard& shard() const { return shard_; }

   private:
    ParamStore& store_;
    bool pieces_;
    int unit_ = -1;
    size_t segment_ = 0;
    Shard shard_{};
  };

  /// Calls work(unit, shard) for this rank's parts of every trained unit, in a pass with Access::update, then publishes
  /// the weights. If the host makes the update of a GPU, the function may return before: each unit is then updated at
  /// the latest when it is acquired, while the device works on earlier ones.
  using ShardWork = std::function<void(int unit, const Shard& shard)>;
  void update(ShardWork work);
  /// Waits until no other rank reads this rank's masters: before they are changed outside of a pass.
  void begin_change();
  /// Completes a deferred update. Call it before reading or writing state; passes, gradients, and calls that gather or
  /// publish do so.
  void finish_update();

  const StatePlanes& states() const;
  const UnitPlanes& planes(int unit) const;
  /// Bytes of the state of all trained units, over all ranks.
  int64_t state_bytes() const;
  bool is_offloaded(size_t plane) const;
  /// Copies a plane's values for elements [begin, begin + count) of a unit, all of them in one shard of this rank, from
  /// or to host memory: whole chunks, unless the plane has a value per element. Any thread may read while nothing is
  /// written. The master of a frozen unit is its weights, rounded when written; of a quantised one, dequantised and
  /// never written.
  void read_state(int unit, size_t plane, int64_t begin, int64_t count, void* out, Stream& stream) const;
  void write_state(int unit, size_t plane, int64_t begin, int64_t count, const void* values, Stream& stream);
  /// Copies records of a quantised unit (quantized_matrix.hpp), of elements [begin, begin + count) in whole chunks that
  /// this rank stores, from or to host memory. Any thread may write if no other one writes these elements; then call
  /// publish_weights().
  void write_chunks(int unit, int64_t begin, int64_t count, const uint8_t* records, Stream& stream);
  void read_chunks(int unit, int64_t begin, int64_t count, uint8_t* records, Stream& stream) const;
  /// Copies the table of a slice of a quantised unit, which every rank has whole.
  void write_table(int unit, int param, int slice, std::span<const float> values, Stream& stream);
  std::vector<float> read_table(int unit, int param, int slice, Stream& stream) const;
  /// Recomputes this rank's weights from its masters; then call publish_weights().
  void round_masters();
  /// The elements of the segment that this rank counts in sums over the whole model (norm, hash): disjoint over ranks
  /// at any stage.
  UnitRange owned(int unit, size_t segment) const;
  /// Distributes changed weights, after masters and shards of weights were changed, to every rank; also those of frozen
  /// units, after the owned() part was written.
  void publish_weights();

  /// Distributes masters and weights to all ranks after the owned() part of every master was written directly (padding
  /// left zero). Collective.
  void publish_masters();

  /// Copies elements [begin, end) of a flat unit into `out` (fp32 master values, host memory) on every rank.
  /// Collective.
  void gather_range(int unit, int64_t begin, int64_t end, float* out);

 private:
  struct State;
  void share_masters(int unit);
  void initialize_range(const Shard& shard, int unit, uint64_t seed);
  void initialize_frozen(int unit, uint64_t seed);
  void initialize_quantized(int unit, uint64_t seed);
  void read_dequantized(int unit, int64_t begin, int64_t count, float* out, Stream& stream) const;
  std::unique_ptr<State> state_;
};

}  // namespace llmtrain
