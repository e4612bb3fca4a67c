#pragma once
#include <span>
#include <string>

namespace llmtrain {

/// How tensors travel between the GPUs of a job; the same on every rank.
struct TransportChoice {
  bool staged = false;  ///< through host memory and MPI, else by NCCL, which wants a GPU for each rank
  std::string note;     ///< why, where it is staged
};

/// `addresses`: device_address() of each rank; `machines`: boot_id() of each.
TransportChoice choose_transport(std::span<const std::string> addresses, std::span<const std::string> machines);

/// Of version numbers as NCCL has them: "NCCL 2.28.9" and, where the program was built with another one, which.
std::string nccl_versions(int built_with, int found);

}  // namespace llmtrain
