#pragma once
// Inside of ParamStore: what the stages and the rank count decide, and the buffers that follow.

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

/// The stage as answers to questions.
struct ParamPolicy {
  explicit ParamPolicy(const ParamStoreOptions& options);

  bool whole_state;        ///< every rank holds and updates all elements (stage 0, or one rank)
  bool whole_weights;      ///< all weights are stored; else they are gathered into a ring around their use
  bool own_master;         ///< fp32 compute: the stored weights are the master
  bool gradient_ring;      ///< a unit's gradient lives from its backward pass to the end of its reduction only
  bool gradient_is_sum;    ///< one rank and one group: no accumulator
  bool gather_sums;        ///< stage 0 on several ranks: the sums go to everybody
  bool block_accumulator;  ///< some reduction block after the first has several groups
  MemoryPlace exchanged;   ///< where gradients and weights lie that other ranks take
  std::array<bool, offload_kinds> offloaded;  ///< by kind
  bool on_disk;                               ///< they lie there, else in memory of the host
  bool rounded_shard;                         ///< the own part of gathered weights is kept apart from the master
  int64_t received_pieces;                    ///< shards of ranks of other nodes that arrive in one exchange at most
};

/// A gradient on its way to the owners of its shards.
struct GradientExchange {
  int unit;
  int64_t round;
  size_t staging;
  Transfer transfer;
  bool added = false;  ///< to the sums; others may still read this rank's part
};

struct UnitState {
  UnitSpec spec;
  UnitLayout layout;
  std::vector<int64_t> borders;              ///< between the shards of all ranks, after start()
  int64_t begin = 0, end = 0;                ///< this rank's shard
  int64_t update_begin = 0, update_end = 0;  ///< what this rank updates: its shard or everything
  // Empty where the policy has no such buffer.
  Tensor weights;       ///< compute dtype, whole; in a weight ring only of units with a buffer of their own
  Tensor master, m, v;  ///< fp32, the elements that this rank updates; no data where they are offloaded
  Tensor rounded;       ///< compute dtype, the same elements (ParamPolicy::rounded_shard)
  Tensor gradient;      ///< fp32, whole
  Tensor total, block;  ///< fp32, own shard: sum over blocks, sum inside a block
  // Weights.
  int holders = 0;        ///< acquire() without release()
  int weight_slot = -1;   ///< ring slot that holds or receives them
  bool gathered = false;  ///< the own buffer holds or receives them
  // Gradients.
  bool open = false;  ///< gradient() was called, reduce() not yet
  int gradient_slot = -1;
  int64_t reduced = 0;  ///< rounds

  explicit UnitState(UnitSpec s) : spec(std::move(s)), layout(spec) {}
  int64_t shard_elements() const { return end - begin; }
};

struct WeightSlot {
  Tensor buffer;
  int unit = -1;
  bool reserved = false;  ///< prefetched and not yet acquired
  int64_t last_use = 0;
};

struct GradientSlot {
  Tensor buffer;
  int unit = -1;      ///< whose padding is zero in it
  bool busy = false;  ///< open or in flight
};

struct ParamStore::State {
  State(std::vector<UnitSpec> specs, const ParamStoreOptions& given);

  ParamStoreOptions options;
  ParamPolicy policy;
  std::vector<UnitState> units;
  RingPlan weight_ring, gradient_ring;
  std::array<WeightSlot, 2> weight_slots;
  std::array<GradientSlot, 2> gradient_slots;
  std::vector<Transfer> gathers;  ///< of each unit
  std::vector<Tensor> received;   ///< one per rank, of the exchange being started or completed
  std::vector<uint8_t> contributes;
  std::vector<Tensor> in_order;             ///< of the exchange being completed, in the order of groups
  std::array<Tensor, 2> staging;            ///< fp32, received pieces of one exchange
  std::vector<GradientExchange> in_flight;  ///< at most one per staging buffer, oldest first
  size_t next_staging = 0;
  int64_t clock = 0;
  Communicator* communicator = nullptr;
  Stream* stream = nullptr;

  OffloadLayout offloaded;
  Tensor ring_memory;           ///< where device memory is the host's
  PinnedBuffer pinned;          ///< elsewhere
  char* host_memory = nullptr;  ///< one kind of a piece from a disk, or all pieces
  mutable std::mutex part_mutex;
  Tensor device_piece;  ///< a copy of a piece for kernels
  std::unique_ptr<OffloadTransfers> transfers;
  std::unique_ptr<OffloadFile> file;
  std::unique_ptr<OffloadRing> ring;    ///< after the file, whose threads it ends
  std::unique_ptr<OffloadAhead> ahead;  ///< of weights; likewise
  int last_taken = -1;                  ///< unit
  struct Pass {
    Access access = Access::all;
    int64_t piece = -1;
  } pass;

  /// An update whose units are worked on as they are wanted.
  struct LateUpdate {
    LateUpdate(ParamStore& store, ShardWork given) : pass(store, Access::update), work(std::move(given)) {}
    StatePass pass;
    ShardWork work;
    int updated = 0;  ///< units
  };
  std::optional<LateUpdate> late_update;

  int64_t groups = 0;  ///< of the current step
  int64_t round = -1;
  bool first = true, last = true;  ///< micro-batch of the group

  UnitState& at(int unit);
  const UnitState& at(int unit) const;
  Communicator& comm() const;

  // param_store_plan.cpp
  void plan_weights(Arena& arena);
  void plan_optimizer(Arena& arena);
  void plan_gradients(Arena& arena);
  void plan_staging(Arena& arena);
  void plan_offload(Arena& arena);
  void start(Communicator& given_communicator, Stream& given_stream);

  // param_store_weights.cpp
  bool start_gather(int unit, bool evict);
  void await(Transfer& gather);
  void gather_all(Tensor UnitState::*buffer);
  void finish_gathers();
  void gather_into(int unit, const Tensor& buffer);
  int choose_weight_slot(const UnitState& u, bool evict) const;
  void empty_weight_slot(WeightSlot& slot);
  Tensor whole_weights(const UnitState& u) const;
  void forget_gathered();
  void expect_unused() const;

  // param_store_offload.cpp
  void reserve_disk();
  void start_offload();
  int64_t ring_bytes() const;
  int64_t pinned_bytes() const;
  bool needs_offloaded(Access access) const;
  size_t weights_kind() const;
  bool reads_weights_ahead() const;
  void take_ahead(int unit, const Tensor& out);
  bool updates_on_host() const;
  int64_t element_bytes(size_t kind) const;
  Shard shard_of(const UnitState& u) const;
  Shard resident_part(const OffloadPiece& piece) const;
  void add_offloaded(Shard& shard, const OffloadPiece& piece, char* memory) const;
  char* memory_of(const OffloadPiece& piece) const;
  template <class Visit>
  void each_part(int unit, size_t kind, int64_t begin, int64_t count, bool changes, const Visit& visit) const;
  void take_own_weights(int unit, const Tensor& out);
  Tensor resident(int unit, StateKind kind, int64_t begin, int64_t count) const;

  // param_store_pass.cpp
  bool on_device(Access access) const;
  void begin_pass(Access access);
  bool next_piece(Shard& shard);
  void leave_piece();
  bool updates_late() const;
  void update_through(int unit);

  // param_store_gradients.cpp
  int64_t group_of(int64_t of_round) const;
  bool is_in_flight(int unit) const;
  void open_gradient(int unit);
  void take_gradient_slot(UnitState& u, int unit);
  void free_gradient(UnitState& u);
  void lay_out_exchange(const UnitState& u, int64_t of_round, size_t buffer);
  void start_exchange(int unit);
  void complete_oldest();
  void complete_arrived();
  void add_arrived();
  void add(GradientExchange& exchange);
  void gather_sums();
  void fold(int unit, int64_t group, std::span<const Tensor> gradients);
  /// Where groups are added: `count` ones of one block, from `group` on.
  struct FoldPlace {
    bool to_total;      ///< else to the block's sum
    bool begins, ends;  ///< the block
  };
  FoldPlace place_of(int64_t group, int64_t count) const;
  int64_t block_of(int64_t group) const;
  Tensor whole_gradient(const UnitState& u) const;
};

/// Elements [begin, end) of a flat tensor.
inline Tensor part_of(const Tensor& flat, int64_t begin, int64_t end) { return flat.rows(begin, end - begin); }

/// One tensor of a flat unit, as its kernels see it.
inline Tensor parameter_view(const UnitState& u, const Tensor& flat, int param) {
  LLMTRAIN_CHECK(param >= 0 && static_cast<size_t>(param) < u.spec.params.size(),
                 "no such parameter in unit " + u.spec.name);
  const ParamSpec& spec = u.spec.params[static_cast<size_t>(param)];
  const Tensor part = flat.rows(u.layout.offset(param), spec.numel());
  const bool vector = spec.columns == 1 && !spec.decay;  // a matrix may have one column, too
  return vector ? part : part.reshaped({spec.rows, spec.columns});
}

}  // namespace llmtrain
