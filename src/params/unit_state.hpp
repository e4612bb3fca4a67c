#pragma once
// Private state of ParamStore: the policy of stage and rank count, and the resulting buffers.

#include <array>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "params/offload_ahead.hpp"
#include "params/offload_ring.hpp"
#include "params/offload_transfers.hpp"
#include "params/param_store.hpp"
#include "params/unit_ring.hpp"

namespace llmtrain {

/// The ZeRO stage as a set of decisions.
struct ParamPolicy {
  explicit ParamPolicy(const ParamStoreOptions& options);

  bool whole_state;             ///< every rank holds and updates all elements (stage 0, or one rank)
  bool whole_weights;           ///< all weights are stored; else they are gathered into a ring around their use
  bool own_master;              ///< fp32 compute: the stored weights are the master
  bool gradient_ring;           ///< a unit's gradient lives from its backward pass to the end of its reduction only
  bool gradient_is_sum;         ///< one rank and one group: no accumulator
  bool gather_sums;             ///< stage 0 on several ranks: the sums go to everybody
  bool block_accumulator;       ///< some reduction block after the first has several groups
  MemoryScope exchanged;        ///< memory of gradients and weights that other ranks read
  std::vector<bool> offloaded;  ///< by plane of the state; behind them: weights in the compute dtype
  bool on_disk;                 ///< offloaded kinds lie on a disk, else in host memory
  /// this rank's shard of gathered weights is stored separately from the master
  bool rounded_shard;
  /// maximum number of shards that arrive from ranks of other nodes in one exchange
  int64_t received_shards;
};

/// A segment's gradient that is sent to the owners of its shards.
struct GradientExchange {
  int unit;
  size_t segment;
  int64_t round;
  size_t staging;
  Transfer transfer;
  bool added = false;  ///< added to the sums; others may still read this rank's part
};

/// Elements [first, last) of a unit. All numbers of elements are those of the unit.
struct UnitSegment {
  int64_t first = 0, last = 0;
  size_t part = 0;                           ///< of the gradient
  bool written = false;                      ///< by RowBlocks, in the last micro-batch of this round
  std::vector<int64_t> borders;              ///< between all ranks' shards, from `first` on; valid after start()
  int64_t begin = 0, end = 0;                ///< this rank's shard
  int64_t update_begin = 0, update_end = 0;  ///< range that this rank updates: its shard or everything
  // Buffers; empty if the policy has no such buffer.
  /// Planes of the state of the elements that this rank updates; no data if they are offloaded.
  std::array<Tensor, max_state_planes> states;
  Tensor rounded;       ///< weights, the same elements (ParamPolicy::rounded_shard, or frozen: in the storage)
  Tensor total, block;  ///< fp32, own shard: sum over blocks, sum inside a block

  int64_t elements() const { return last - first; }
  int64_t shard_elements() const { return end - begin; }
  int64_t update_elements() const { return update_end - update_begin; }
  Tensor& master() { return states[master_plane]; }
};

/// Elements [first, last) of a unit's gradient that have memory together: all, or in the ring a segment of a matrix by
/// rows, or segments between these.
struct GradientPart {
  int64_t first = 0, last = 0;
  bool in_ring = false;
  Tensor buffer = {};  ///< fp32; empty in the ring
  int slot = -1;       ///< of the ring
  bool open = false;   ///< from the first write to the start of the last exchange
  int exchanges = 0;   ///< number in flight

  int64_t elements() const { return last - first; }
};

struct UnitState {
  UnitSpec spec;
  UnitLayout layout;
  UnitPlanes planes;             ///< of the state
  std::vector<int64_t> borders;  ///< UnitLayout::borders() of all ranks, valid after start()
  std::vector<UnitSegment> segments;
  std::vector<GradientPart> parts;
  /// Storage of the weights: values of the compute dtype by element, or the bytes of a chunk's record.
  StatePlane storage;
  Tensor weights;  ///< in the storage, whole; in a weight ring only for units with a buffer of their own
  Tensor tables;   ///< fp32, of all slices of a quantised unit, whole on every rank
  std::vector<int64_t> stored_borders;  ///< `borders` in values of the storage
  // Weights.
  int holders = 0;         ///< number of acquire() calls without release()
  int weight_slot = -1;    ///< ring slot that holds or receives them
  bool gathered = false;   ///< the unit's own buffer holds or receives them
  int64_t collective = 0;  ///< number of a gather that was not waited for; 0: none
  // Gradients.
  bool open = false;          ///< gradient() was called, reduce() was not
  std::vector<size_t> order;  ///< of the exchanges: segments of matrices by rows from the last on, then the others
  size_t by_rows = 0;         ///< number of the former; 0 if the unit is not divided
  size_t started = 0;         ///< number of segments whose exchange in this round has started
  int64_t reduced = 0;        ///< number of completed rounds

  UnitState(UnitSpec s, const ParamStoreOptions& options);
  bool trained() const { return spec.trained; }
  bool quantized() const { return spec.quantization.has_value(); }
  int64_t table_offset(int param, int slice) const;
  int64_t table_values() const;
  /// Values of elements [begin, end) in a tensor of the storage that begins with element `first`.
  Tensor stored_part(const Tensor& flat, int64_t begin, int64_t end, int64_t first = 0) const {
    return flat.rows(storage.values(begin - first), storage.values(end - begin));
  }
  GradientPart& part_of(const UnitSegment& segment) { return parts[segment.part]; }
  /// "block 3", or "block 3, segment 2".
  std::string name_of(const UnitSegment& segment) const;
};

/// Fills `out` with elements from `first` on of a slice whose random numbers have the key.
void fill_range(const Tensor& out, const Initializer& init, uint64_t key, int64_t first, Stream& stream);

/// Elements [begin, end) of a flat tensor.
inline Tensor part_of(const Tensor& flat, int64_t begin, int64_t end) { return flat.rows(begin, end - begin); }

struct WeightSlot {
  Tensor buffer;
  int unit = -1;
  bool reserved = false;  ///< prefetched, not yet acquired
  int64_t last_use = 0;
};

struct GradientSlot {
  Tensor buffer;
  const GradientPart* part = nullptr;  ///< part whose padding is zero in the buffer
  bool busy = false;                   ///< open or in flight
};

struct ParamStore::State {
  State(std::vector<UnitSpec> specs, const ParamStoreOptions& given);

  ParamStoreOptions options;
  ParamPolicy policy;
  std::vector<UnitState> units;
  /// Rings of gathered weights: of a layer's first unit, of the others of a layer, and of those in fewer bits.
  static constexpr size_t rings = 3;
  std::array<RingPlan, rings> weight_rings;
  RingPlan gradient_ring;
  std::array<WeightSlot, 2 * rings> weight_slots;
  std::array<GradientSlot, 2> gradient_slots;
  std::vector<Transfer> gathers;  ///< one per unit
  int64_t collectives = 0;        ///< number of gathers and exchanges so far
  int64_t gathered_units = 0;     ///< see ParamStore::gathers()
  std::vector<Tensor> received;   ///< one per rank, for the exchange being started or completed
  std::vector<uint8_t> contributes;
  std::vector<Tensor> in_order;             ///< gradients of the exchange being completed, in the order of groups
  std::array<Tensor, 2> staging;            ///< fp32, received shards of one exchange
  std::vector<GradientExchange> in_flight;  ///< at most one per staging buffer, oldest first
  size_t next_staging = 0;
  int64_t clock = 0;
  Communicator* communicator = nullptr;
  Stream* stream = nullptr;

  OffloadLayout offloaded;
  Tensor ring_memory;           ///< used if device memory is the host's
  PinnedBuffer pinned;          ///< used otherwise
  char* host_memory = nullptr;  ///< one kind of a piece from a disk, or all pieces
  mutable std::mutex part_mutex;
  Tensor device_piece;  ///< a copy of a piece for kernels
  std::unique_ptr<OffloadTransfers> transfers;
  std::unique_ptr<OffloadFile> file;
  std::unique_ptr<OffloadRing> ring;    ///< destroyed before the file, which its threads use
  std::unique_ptr<OffloadAhead> ahead;  ///< prefetches weights; destroyed before the file
  int last_taken = -1;                  ///< last unit taken from `ahead`
  struct Pass {
    Access access = Access::all;
    int64_t piece = -1;
  } pass;

  /// An update whose units are processed on demand.
  struct LateUpdate {
    LateUpdate(ParamStore& store, ShardWork given) : pass(store, Access::update), work(std::move(given)) {}
    StatePass pass;
    ShardWork work;
    int updated = 0;  ///< number of updated units
  };
  std::optional<LateUpdate> late_update;

  int64_t groups = 0;  ///< number in the current step
  int64_t round = -1;
  bool first = true, last = true;  ///< position of the micro-batch in its group

  UnitState& at(int unit);
  const UnitState& at(int unit) const;
  Communicator& comm() const;
  bool any_trained() const;
  bool has_own_buffer(int unit) const;
  static size_t ring_of(const UnitState& u) {
    if (u.quantized()) return 2;
    return u.spec.same_layer_as_previous ? 1 : 0;
  }
  /// True if all weights of the unit are stored; else they are gathered around their use. (One rank stores those of a
  /// frozen unit once.)
  bool whole_weights_of(const UnitState& u) const {
    return policy.whole_weights || (!u.trained() && options.size == 1);
  }
  /// Storage of this rank's elements of a frozen unit's segment.
  Tensor stored(const UnitState& u, const UnitSegment& s) const {
    return whole_weights_of(u) ? u.stored_part(u.weights, s.update_begin, s.update_end) : s.rounded;
  }
  /// The segment in which these elements of this rank lie.
  const UnitSegment& segment_of(const UnitState& u, int64_t begin, int64_t count) const;
  void add_segments(UnitState& u);
  void order_segments(UnitState& u);
  void plan_gradient_ring();

  // param_policy.cpp
  void plan_weights(Arena& arena);
  void plan_optimizer(Arena& arena);
  void plan_states(Arena& arena, const UnitState& u, UnitSegment& s);
  void plan_gradients(Arena& arena);
  void plan_staging(Arena& arena);
  void plan_offload(Arena& arena);
  void start(Communicator& given_communicator, Stream& given_stream);

  // weight_ring.cpp
  bool start_gather(int unit, bool evict);
  void await(int unit);
  Transfer gather(UnitState& u, const Tensor& buffer);
  void gather_all(const std::function<Tensor(const UnitState&)>& buffer, bool trained);
  void publish_trained();
  void finish_gathers();
  void gather_into(int unit, const Tensor& buffer);
  int choose_weight_slot(const UnitState& u, bool evict) const;
  void empty_weight_slot(WeightSlot& slot);
  Tensor whole_weights(const UnitState& u) const;
  void forget_gathered(bool trained);
  /// The records of elements [begin, begin + count) that this rank stores.
  Tensor own_chunks(int unit, int64_t begin, int64_t count) const;
  void expect_unused() const;

  // state_store.cpp
  void reserve_disk();
  void start_offload();
  int64_t ring_bytes() const;
  int64_t pinned_bytes() const;
  bool needs_offloaded(Access access) const;
  size_t weights_kind() const;
  bool reads_weights_ahead() const;
  void take_ahead(int unit, const Tensor& buffer);
  bool offloads_moments() const;
  bool updates_on_host() const;
  size_t rounded_kind() const { return options.states.size(); }
  int64_t bytes_of_kind(const UnitState& u, size_t kind, int64_t begin, int64_t end) const;
  Shard shard_of(const UnitState& u, const UnitSegment& s) const;
  Shard resident_part(const OffloadPiece& piece) const;
  void add_offloaded(Shard& shard, const OffloadPiece& piece, char* memory) const;
  char* memory_of(const OffloadPiece& piece) const;
  template <class Visit>
  void each_part(int unit, size_t kind, int64_t begin, int64_t count, bool changes, const Visit& visit) const;
  void take_own_weights(int unit, const Tensor& buffer);
  void expect_state(int unit, size_t plane, int64_t begin, int64_t count) const;
  Tensor resident(const UnitState& u, const UnitSegment& s, size_t plane, const ShardBorders& elements) const;

  // state_pass.cpp
  bool on_device(Access access) const;
  void begin_pass(Access access);
  bool next_piece(Shard& shard);
  void leave_piece();
  bool updates_late() const;
  void update_through(int unit);

  // gradient_reducer.cpp
  int64_t group_of(int64_t of_round) const;
  Tensor open_gradient(UnitState& u, GradientPart& part);
  void take_gradient_slot(const UnitState& u, GradientPart& part);
  void free_gradient(GradientPart& part);
  void lay_out_exchange(const UnitSegment& s, int64_t of_round, size_t buffer);
  void start_exchange(int unit, size_t segment);
  void await_old_gathers();
  void end_rows(int unit, UnitSegment& s);
  void start_exchanges(int unit, size_t count);
  void complete_oldest();
  void complete_arrived();
  void add_arrived();
  void add(GradientExchange& exchange);
  void gather_sums();
  void fold(const UnitSegment& s, int64_t group, std::span<const Tensor> gradients);
  /// Destination of `count` groups of one block, from `group` on.
  struct FoldTarget {
    bool to_total;      ///< true: the total; false: the block's sum
    bool begins, ends;  ///< the groups begin or end the block
  };
  FoldTarget target_of(int64_t group, int64_t count) const;
  int64_t block_of(int64_t group) const;
  Tensor gradient_of(const GradientPart& part) const;
  /// The gradient of elements [begin, end) of a unit, which lie in the part.
  Tensor gradient_of(const GradientPart& part, int64_t begin, int64_t end) const {
    return part_of(gradient_of(part), begin - part.first, end - part.first);
  }
};

/// View of one tensor in a flat unit, or in elements of it from `first` on, in the shape that kernels expect.
inline Tensor parameter_view(const UnitState& u, const Tensor& flat, int param, int64_t first = 0) {
  LLMTRAIN_CHECK(param >= 0 && static_cast<size_t>(param) < u.spec.params.size(),
                 "no such parameter in unit " + u.spec.name);
  const ParamSpec& spec = u.spec.params[static_cast<size_t>(param)];
  const Tensor part = flat.rows(u.layout.offset(param) - first, spec.numel());
  const bool vector = spec.columns == 1 && !spec.decay;  // a matrix may also have one column
  return vector ? part : part.reshaped({spec.rows, spec.columns});
}

}  // namespace llmtrain
