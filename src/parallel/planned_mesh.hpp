#pragma once
#include "parallel/mesh.hpp"

namespace llmtrain {

/// A mesh of a job of any number of ranks, which need not run.
struct PlannedMesh : MeshShape {
  int64_t ranks = 1;

  /// Ranks with other micro-batches.
  int64_t data() const { return ranks / of_micro_batch(); }
  bool divides_ranks() const { return ranks % of_micro_batch() == 0; }
};

}  // namespace llmtrain
