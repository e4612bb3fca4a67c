#pragma once
#include <cstdint>

#include "parallel/communicator.hpp"
#include "parallel/mesh_shape.hpp"

namespace llmtrain {

/// The place of this rank in a mesh of all ranks of a job, and the communicators of its axes (docs/design/mesh.md).
class Mesh {
 public:
  /// The job's size is a multiple of shape.ranks_per_micro_batch() (require_mesh()). Collective.
  Mesh(Communicator& job, const MeshShape& shape);

  const MeshShape& shape() const { return shape_; }
  Communicator& job() const { return job_; }
  /// Ranks with other micro-batches, this one included, and its number among them.
  int64_t data_ranks() const { return job_.size() / shape_.ranks_per_micro_batch(); }
  int64_t data_rank() const { return job_.rank() / shape_.ranks_per_micro_batch(); }
  int64_t context_rank() const { return job_.rank() / shape_.tensor % shape_.context; }
  int64_t tensor_rank() const { return job_.rank() % shape_.tensor; }
  /// True for the one of the ranks of a micro-batch that counts it.
  bool leads() const { return job_.rank() % shape_.ranks_per_micro_batch() == 0; }
  /// Ranks that share the rows of this rank's micro-batches, in order; null: it shares them with none.
  Communicator* context() const { return context_; }
  /// Ranks that share its matrices; null: it shares them with none.
  Communicator* tensor() const { return tensor_; }
  /// Ranks that share its experts, for rows of their own; null: it shares them with none.
  Communicator* experts() const { return experts_; }
  /// Ranks that have the same blocks of matrices and experts: parameters are sharded over them.
  Communicator& parameters() const { return *parameters_; }
  /// Ranks that have the same blocks of matrices, and whose passes are the same while they share experts: texts and
  /// samples are divided among them.
  Communicator& passes() const { return *passes_; }

 private:
  Communicator& job_;
  MeshShape shape_;
  Communicator *context_ = nullptr, *tensor_ = nullptr, *experts_ = nullptr, *passes_, *parameters_;
};

}  // namespace llmtrain
