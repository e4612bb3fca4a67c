#include "parallel/transport_choice.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace llmtrain {

TransportChoice choose_transport(std::span<const std::string> addresses) {
  for (size_t r = 0; r < addresses.size(); ++r) {
    const auto first =
        static_cast<size_t>(std::find(addresses.begin(), addresses.end(), addresses[r]) - addresses.begin());
    if (first == r) continue;
    return {true,
            fmt::format("ranks {} and {} share {}: tensors travel between all ranks through host memory and MPI, "
                        "which is slow; with one rank per GPU (under Slurm: --gpus-per-task=1) they travel by NCCL",
                        first, r, addresses[r])};
  }
  return {};
}

}  // namespace llmtrain
