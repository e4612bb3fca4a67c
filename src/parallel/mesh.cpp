#include "parallel/mesh.hpp"

#include "core/error.hpp"

namespace llmtrain {

Mesh::Mesh(Communicator& job, const MeshShape& shape) : job_(job), shape_(shape), parameters_(&job) {
  LLMTRAIN_CHECK(job.size() % shape.ranks_per_micro_batch() == 0 && job.size() % shape.ranks_of_blocks() == 0,
                 "a mesh divides the ranks of its job");
  LLMTRAIN_CHECK(shape.tensor == 1 || shape.expert == 1, "ranks that share matrices share experts too");
  if (shape.context > 1) context_ = &job.group(static_cast<int>(data_rank() * shape_.tensor + tensor_rank()));
  if (shape.expert > 1) {
    experts_ = &job.group(static_cast<int>(job.rank() / shape.expert));
    parameters_ = &job.group(static_cast<int>(job.rank() % shape.expert));
  }
  if (shape.tensor == 1) return;
  tensor_ = &job.group(static_cast<int>(job.rank() / shape.tensor));
  parameters_ = &job.group(static_cast<int>(tensor_rank()));
}

}  // namespace llmtrain
