#pragma once
// Parameters, their gradients and optimizer state, divided ZeRO-style (Rajbhandari et al. 2020). Models and optimizers
// see units; the stage is a private policy:
//   stage 0  every rank holds everything; gradient sums are gathered to all, all update alike
//   stage 1  master weights and moments are sharded
//   stage 2  gradients too: a ring of unit buffers instead of a whole gradient
//   stage 3  weights too: gathered into a ring of unit buffers around their use
// The value of every parameter after a step is bit-identical for all stages and rank counts, and wherever the state
// lies: masters and moments, or the weights of stage 3, may be offloaded to a disk, from where they come piece by
// piece.
//
// A step has G reduction groups. Group g is computed by rank g mod W in round g / W; each rank runs every round, with
// or without a group of its own (idle passes take part in gathers and reductions). Within a group gradients accumulate
// in fp32. The owner of a shard adds the groups in the order of g: inside each of H blocks of consecutive groups, then
// over blocks. Group g of a full step of G groups is in block g * H / G; a shorter step leaves out the last groups.
//
//   begin_step(groups)
//   for round: begin_round(round)
//     for micro-batch slot: begin_micro_batch(first, last)
//       forward:  prefetch(u+1) acquire(u) weight(u, p) release(u)
//       backward: the same, and gradient(u, p) written, then reduce(u)
//   finish_gradients(); [norm]; update(work on shards)
//
// Calls that communicate (acquire, prefetch, reduce, finish, update, publish, initialize) come in the same order on
// every rank.

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/arena.hpp"
#include "core/params.hpp"
#include "device/device.hpp"
#include "parallel/communicator.hpp"
#include "parallel/parallel_config.hpp"
#include "params/unit_layout.hpp"

namespace llmtrain {

struct ParamStoreOptions {
  DType compute = DType::f32;  ///< dtype of weights seen by kernels; fp32 weights are their own master
  int zero_stage = 1;
  int rank = 0;  ///< for a plan of any rank count, without MPI
  int size = 1;
  int node_size = 1;   ///< ranks, this one included, that read each other's buffers where they lie
  int64_t groups = 1;  ///< reduction groups of a full step (G)
  int64_t blocks = 1;  ///< reduction blocks (H)
  int64_t micro_batches_per_group = 1;
  bool trained = true;  ///< false: weights only, without gradients and moments, to evaluate or generate with
  Offload offload_optimizer = Offload::none;   ///< masters (those apart from weights) and moments; if trained
  Offload offload_parameters = Offload::none;  ///< weights, at stage 3; if trained
  std::string offload_path = {};               ///< folder on a local disk, for Offload::nvme
  int64_t offload_piece = int64_t{1} << 18;    ///< elements that move at once; a multiple of 256
};

class ParamStore {
 public:
  ParamStore(std::vector<UnitSpec> units, const ParamStoreOptions& options);
  ~ParamStore();
  ParamStore(const ParamStore&) = delete;
  ParamStore& operator=(const ParamStore&) = delete;

  /// Registers every buffer. The estimate for any rank count needs nothing more.
  void plan(Arena& arena);
  /// Of this rank, on a disk. Known as soon as the store is made.
  int64_t offloaded_bytes() const;
  /// Takes the space on the disk, if any; start() does it where this was not called. UserError when it is not there.
  void reserve_disk();
  /// Of this rank, in memory of the host beside what is planned; of a GPU only.
  int64_t pinned_bytes() const;
  /// After the arena is committed. communicator.size() must be options.size.
  void start(Communicator& communicator, Stream& stream);

  int unit_count() const;
  const UnitSpec& spec(int unit) const;
  const UnitLayout& layout(int unit) const;
  int64_t parameter_count() const;  ///< without padding

  /// Values as a function of (seed, slice name, element); then publish_weights().
  void initialize(uint64_t seed);

  // Weights. acquire waits for the gather; weight() is valid between acquire and release, in the compute dtype.
  void prefetch(int unit);
  void acquire(int unit);
  Tensor weight(int unit, int param) const;
  void release(int unit);

  // Gradients of the current group, fp32, [rows, columns] or [rows].
  void begin_step(int64_t groups);
  int64_t rounds() const;
  /// The group this rank computes in the round, or -1.
  int64_t begin_round(int64_t round);
  void begin_micro_batch(bool first, bool last);
  /// Whether kernels add to gradient() (a later micro-batch of the group) or overwrite it. Buffers of tensors that are
  /// scattered into are zeroed by the writer when this is false.
  bool accumulate() const;
  Tensor gradient(int unit, int param);
  /// The unit's gradient of this micro-batch is complete: starts its reduction when it is the last of the group.
  void reduce(int unit);
  /// Waits until every shard holds the sum over all groups.
  void finish_gradients();

  // A micro-batch's passes as a graph of the device.
  /// Whether passes are work of this rank's device alone, in buffers that do not change hands: with whole weights those
  /// of one rank, and of several ranks those between the first and the last one of a group.
  bool passes_repeat() const;
  /// Whether those of this micro-batch are.
  bool pass_is_replayable() const;
  /// Equal for micro-batches whose passes are the same work.
  uint64_t pass_key() const;
  /// In place of passes whose work a graph does: what they leave in the books.
  void mark_passes_done();

  /// What this rank updates of a unit: elements [begin, end) of the flat unit. Stage 0: the whole unit.
  struct Shard {
    int64_t begin;
    int64_t end;
    Tensor master;    ///< fp32
    Tensor m, v;      ///< fp32
    Tensor gradient;  ///< fp32, sum over groups after finish_gradients()
    Tensor weights;   ///< this range in the compute dtype where it is stored apart, else empty: whoever changes the
                      ///< master writes it too (adamw_update does)
    bool on_host = false;  ///< all of it is memory of the host, although the device has its own
    UnitRange part_of(const UnitRange& range) const {
      return {std::max(begin, range.begin), std::min(end, range.end), range.decay};
    }
  };
  /// What is offloaded is empty in it: a StatePass has that.
  Shard shard(int unit) const;

  /// How a pass uses the state. What it does not need is empty or not worth looking at.
  enum class Access : uint8_t { masters, all, change, update };
  /// This rank's part of every unit in turn: whole where it lies in memory, else piece by piece, cut at multiples of
  /// 256 elements, while the next ones are read and the last ones written. What changes is kept after `change` and
  /// `update`, once next() has given false; `update` may give shards on_host. One pass at a time.
  ///   for (ParamStore::StatePass pass(store, ParamStore::Access::update); pass.next();) ... pass.shard() ...
  class StatePass {
   public:
    StatePass(ParamStore& store, Access access);
    ~StatePass();
    StatePass(const StatePass&) = delete;
    StatePass& operator=(const StatePass&) = delete;
    bool next();
    int unit() const { return unit_; }
    const Shard& shard() const { return shard_; }

   private:
    ParamStore& store_;
    bool pieces_;
    int unit_ = -1;
    Shard shard_{};
  };

  /// Calls work(unit, shard) for this rank's part of every unit, as a pass with Access::update gives it; then the
  /// weights of all ranks follow. Where the host makes the update of a GPU, it may return before: each unit is updated
  /// at last when it is acquired, while the device works on those before it.
  using ShardWork = std::function<void(int unit, const Shard& shard)>;
  void update(ShardWork work);
  /// What is left of it. Before state is read or written; passes, gradients, and calls that gather or publish do it.
  void finish_update();

  bool is_offloaded(StateKind kind) const;
  /// Elements [begin, begin + count) of a unit, all of them of this rank's shard, from or to host memory. Any thread
  /// may read while nothing is written.
  void read_state(int unit, StateKind kind, int64_t begin, int64_t count, float* out, Stream& stream) const;
  void write_state(int unit, StateKind kind, int64_t begin, int64_t count, const float* values, Stream& stream);
  /// This rank's weights follow its masters; then publish_weights().
  void round_masters();
  /// The part of the unit that this rank counts in sums over the whole model (norm, hash): disjoint over ranks in any
  /// stage.
  UnitRange owned(int unit) const;
  /// After masters and shards of weights were changed: every rank's copy of the weights is current again.
  void publish_weights();

  /// After the owned() part of every master was written from outside (padding left zero): the masters and weights of
  /// all ranks follow. Collective.
  void publish_masters();

  /// Copies parameter `param` whole into `out` (fp32 master values [rows, columns], host memory) on every rank; for
  /// tests, samples and export. Collective.
  void gather_parameter(int unit, int param, float* out);
  /// The same for elements [begin, end) of a flat unit. Collective.
  void gather_range(int unit, int64_t begin, int64_t end, float* out);
  /// Sets it from host memory; every rank passes the same values. For tests and imports; then publish_weights().
  void set_parameter(int unit, int param, const float* values);

 private:
  struct State;
  void share_masters(int unit);
  std::unique_ptr<State> state_;
};

}  // namespace llmtrain
