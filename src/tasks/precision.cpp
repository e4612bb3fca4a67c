// Resolution of precision.compute by the device.

#include <fmt/format.h>

#include "kernels/matmul.hpp"
#include "tasks/tasks.hpp"

namespace llmtrain {

void resolve_precision(Config& config, bool fast_bf16) {
  using Compute = PrecisionConfig::Compute;
  if (config.precision.compute == Compute::automatic) config.set_compute(fast_bf16 ? Compute::bf16 : Compute::fp32);
  const bool wanted = config.precision.compute == Compute::tf32;
  if (!use_tf32(wanted) && wanted) {
    config.notes.push_back(config.provenance.where("precision.compute") +
                           ": this device has no tf32; products use fp32");
  }
  const ParallelConfig& parallel = config.parallel;
  if (parallel.offload_parameters != Offload::none && parallel.offload_optimizer == Offload::none &&
      compute_dtype(config.precision) != DType::f32) {
    config.notes.push_back(
        config.provenance.where("parallel.offload_parameters") +
        ": no effect without parallel.offload_optimizer, since weights are rounded from the masters");
  }
}

bool agreed_fast_bf16(Communicator& communicator) {
  int64_t fast = bf16_products_are_fast() ? 1 : 0;
  communicator.broadcast(&fast, sizeof(fast));
  return fast != 0;
}

void print_notes(std::span<const std::string> notes) {
  for (const std::string& note : notes) fmt::print(stderr, "{}\n", note);
}

}  // namespace llmtrain
