#pragma once
#include <span>
#include <string>

namespace llmtrain {

/// Transport of tensors between the GPUs of a job; the same on every rank.
struct TransportChoice {
  bool staged = false;  ///< true: through host memory and MPI; false: by NCCL, which needs a GPU for each rank
  std::string note;     ///< reason for staging
};

/// `addresses`: device_address() of each rank; `machines`: boot_id() of each.
TransportChoice choose_transport(std::span<const std::string> addresses, std::span<const std::string> machines);

/// Formats version numbers in NCCL's encoding: "NCCL 2.28.9" and, if it differs, the version of the build.
std::string nccl_versions(int built_with, int found);

}  // namespace llmtrain
