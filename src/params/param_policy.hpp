#pragma once
// Options of a parameter store, and the ZeRO stage as a set of decisions about the memory of weights and state.

#include <cstdint>
#include <string>
#include <vector>

#include "core/arena.hpp"
#include "core/params.hpp"
#include "parallel/parallel_config.hpp"
#include "params/unit_layout.hpp"

namespace llmtrain {

struct ParamStoreOptions {
  DType compute = DType::f32;  ///< dtype of weights seen by kernels; fp32 weights are their own master
  int zero_stage = 1;
  int rank = 0;  ///< among those with the same units; given explicitly, so that a plan for any count needs no MPI
  int size = 1;
  /// Number of this rank among those that share matrices, or experts; the first one counts common units.
  int tensor_rank = 0;
  int tensor_size = 1;        ///< parallel.tensor, or parallel.expert
  int64_t tensor_blocks = 1;  ///< of split matrices, or of experts
  /// Units of the whole model if other ranks have some of them (UnitSpec::tensor_block); empty: the store has all.
  std::vector<UnitSpec> model_units = {};
  int node_size = 1;  ///< ranks, this one included, that read each other's buffers directly
  /// Communicator::adding_ranks_per_node(), for any rank count.
  int ranks_per_node = 0;
  Reduction reduction = Reduction::ordered;
  int64_t groups = 1;  ///< reduction groups of a full step (G)
  /// True if the blocks are of experts (parallel.expert): ranks that have them have groups of their own.
  bool blocks_of_experts = false;
  /// Groups that a rank computes at once, with a gradient each: blocks of rows of its micro-batches. A power of two. If
  /// ranks share experts, those of all of them, which follow each other.
  int64_t groups_at_once = 1;
  bool groups_in_turn = false;  ///< at every stage: consecutive ranks have groups of one micro-batch
  int64_t blocks = 1;           ///< reduction blocks (H)
  int64_t micro_batches_per_group = 1;
  Offload offload_optimizer = Offload::none;   ///< states; the master only if it is separate from the weights
  Offload offload_parameters = Offload::none;  ///< weights of trained units, at stage 3
  std::string offload_path = {};               ///< folder on a local disk, for Offload::nvme
  int64_t offload_piece = int64_t{1} << 18;    ///< elements per transfer; a multiple of 256
  StatePlanes states = master_and_moments();   ///< the optimizer's
  int64_t segment_elements = default_segment_elements;
  /// Stage 3: weights are gathered once between two updates, into memory for all of them.
  bool keeps_gathered = false;

  /// True if ranks have groups of their own, and experts for the rows of all of them.
  bool shares_experts() const { return blocks_of_experts && tensor_size > 1; }
  /// Number of groups_at_once that have rows of this rank.
  int64_t own_groups_at_once() const { return shares_experts() ? groups_at_once / tensor_size : groups_at_once; }
  /// Those for which a rank has a gradient of the unit.
  int64_t groups_at_once_of(const UnitSpec& unit) const {
    return unit.tensor_block < 0 ? own_groups_at_once() : groups_at_once;
  }
  /// Memory of gradients and weights that other ranks read.
  MemoryScope exchanged() const;
  /// The blocks of split matrices that this rank has.
  TensorShare tensor_share() const {
    const int64_t count = tensor_blocks / tensor_size;
    return {tensor_blocks, tensor_rank * count, count};
  }
};

struct ParamPolicy {
  explicit ParamPolicy(const ParamStoreOptions& options);

  bool whole_state;             ///< every rank holds and updates all elements (stage 0, or one rank)
  bool whole_weights;           ///< all weights are stored; else they are gathered into a ring around their use
  bool keeps_gathered;          ///< gathered weights are kept from one update to the next
  bool own_master;              ///< fp32 compute: the stored weights are the master
  std::vector<bool> offloaded;  ///< by kind: the planes of the state; after them the weights in the compute dtype
  bool on_disk;                 ///< offloaded kinds lie on a disk, else in host memory
  /// this rank's shard of gathered weights is stored separately from the master
  bool rounded_shard;

  size_t rounded_kind() const { return offloaded.size() - 1; }
  /// Kind from which gathered weights are taken.
  size_t weights_kind() const { return rounded_shard ? rounded_kind() : master_plane; }
};

}  // namespace llmtrain
