#include "parallel/transport_choice.hpp"

#include <fmt/format.h>

#include "core/error.hpp"

namespace llmtrain {

TransportChoice choose_transport(std::span<const std::string> addresses, std::span<const std::string> machines) {
  LLMTRAIN_CHECK(addresses.size() == machines.size(), "every rank's GPU is on a machine");
  for (size_t r = 0; r < addresses.size(); ++r) {
    size_t first = 0;
    while (addresses[first] != addresses[r] || machines[first] != machines[r]) ++first;
    if (first == r) continue;
    return {true, fmt::format("ranks {} and {} share {}: tensors travel between all ranks through host memory and MPI, "
                              "which is slow. Start one rank per GPU (under Slurm: --gpus-per-task=1) to use NCCL",
                              first, r, addresses[r])};
  }
  return {};
}

std::string nccl_versions(int built_with, int found) {
  const auto text = [](int n) { return fmt::format("{}.{}.{}", n / 10000, n / 100 % 100, n % 100); };
  const std::string library = "NCCL " + text(found);
  return found == built_with ? library : fmt::format("{} (built with {})", library, text(built_with));
}

}  // namespace llmtrain
