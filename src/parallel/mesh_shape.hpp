#pragma once
#include <cstdint>

namespace llmtrain {

/// Ranks along the axes of parallelism. Tensor ranks are neighbours, then context ranks, then data ranks. Of those with
/// the same tensor index, expert ranks are neighbours.
struct MeshShape {
  int64_t tensor = 1;   ///< T: ranks that share matrices
  int64_t context = 1;  ///< C: ranks that share the rows of micro-batches
  int64_t expert = 1;   ///< R: ranks that share experts, for rows of their own

  int64_t ranks_per_micro_batch() const { return tensor * context; }
  /// Ranks that have all blocks of matrices and experts together.
  int64_t ranks_of_blocks() const { return tensor * expert; }
};

/// A mesh of a job of any number of ranks, which need not run.
struct PlannedMesh : MeshShape {
  int64_t ranks = 1;

  /// Ranks with other micro-batches.
  int64_t data() const { return ranks / ranks_per_micro_batch(); }
  bool divides_ranks() const { return ranks % ranks_per_micro_batch() == 0 && ranks % ranks_of_blocks() == 0; }
};

}  // namespace llmtrain
