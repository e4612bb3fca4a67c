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
  // Numbers of this rank among those that share matrices, and among those that share experts; the first ones count
  // common units.
  int tensor_rank = 0, expert_rank = 0;
  int tensor_size = 1;        ///< parallel.tensor
  int expert_size = 1;        ///< parallel.expert: ranks that have reduction groups of their own
  int64_t tensor_blocks = 1;  ///< of split matrices
  int64_t expert_blocks = 1;  ///< of the experts of a layer, or of its block of split matrices
  /// Units of the whole model if other ranks have some of them (UnitSpec::tensor_block, expert_block); empty: the store
  /// has all.
  std::vector<UnitSpec> model_units = {};
  int node_size = 1;  ///< ranks, this one included, that read each other's buffers directly
  /// Communicator::adding_ranks_per_node(), for any rank count.
  int ranks_per_node = 0;
  Reduction reduction = Reduction::ordered;
  int64_t groups = 1;  ///< reduction groups of a full step (G)
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
  bool shares_experts() const { return expert_size > 1; }
  /// Ranks that have all blocks of matrices and experts together.
  int ranks_of_blocks() const { return tensor_size * expert_size; }
  /// Number of groups_at_once that have rows of this rank.
  int64_t own_groups_at_once() const { return groups_at_once / expert_size; }
  /// Those for which a rank has a gradient of the unit.
  int64_t groups_at_once_of(const UnitSpec& unit) const {
    return unit.expert_block < 0 ? own_groups_at_once() : groups_at_once;
  }
  /// Memory of gradients and weights that other ranks read.
  MemoryScope exchanged() const;
  /// The blocks of split matrices that this rank has.
  TensorShare tensor_share() const { return share_of(tensor_blocks, tensor_rank, tensor_size); }
  /// The blocks of experts that this rank has, of the layer or of each of its blocks of split matrices.
  TensorShare expert_share() const { return share_of(expert_blocks, expert_rank, expert_size); }

 private:
  static TensorShare share_of(int64_t blocks, int64_t rank, int64_t size) {
    return {blocks, rank * (blocks / size), blocks / size};
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
