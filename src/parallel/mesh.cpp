#include "parallel/mesh.hpp"

#include "core/error.hpp"

namespace llmtrain {

Mesh::Mesh(Communicator& job, const MeshShape& shape) : job_(job), shape_(shape), passes_(&job) {
  LLMTRAIN_CHECK(job.size() % shape.ranks_per_micro_batch() == 0 && job.size() % shape.ranks_of_blocks() == 0,
                 "a mesh divides the ranks of its job");
  if (shape.context > 1) context_ = &job.group(static_cast<int>(data_rank() * shape_.tensor + tensor_rank()));
  if (shape.tensor > 1) {
    tensor_ = &job.group(static_cast<int>(job.rank() / shape.tensor));
    passes_ = &job.group(static_cast<int>(tensor_rank()));
  }
  parameters_ = passes_;
  if (shape.expert == 1) return;
  const int64_t blocks = shape.ranks_of_blocks();
  experts_ = &job.group(static_cast<int>(job.rank() / blocks * shape.tensor + tensor_rank()));
  parameters_ = &job.group(static_cast<int>(job.rank() % blocks));
}

}  // namespace llmtrain
