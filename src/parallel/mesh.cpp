#include "parallel/mesh.hpp"

#include <fmt/format.h>

#include "core/error.hpp"

namespace llmtrain {

Mesh::Mesh(Communicator& job, const MeshShape& shape) : job_(job), shape_(shape), parameters_(&job) {
  if (job.size() % shape.of_micro_batch() != 0) {
    throw UserError(ExitCode::deck, fmt::format("parallel.tensor, parallel.context: {} x {} does not divide {} ranks: "
                                                "start a multiple of {}, or change a key",
                                                shape.tensor, shape.context, job.size(), shape.of_micro_batch()));
  }
  const auto ranks_of_context = [&] { return data_rank() * shape_.tensor + tensor_rank(); };
  if (shape.context > 1) context_ = &job.group(static_cast<int>(ranks_of_context()));
  if (shape.tensor == 1) return;
  tensor_ = &job.group(static_cast<int>(job.rank() / shape.tensor));
  parameters_ = &job.group(static_cast<int>(tensor_rank()));
}

}  // namespace llmtrain
