#pragma once
#include <cstdint>
#include <string>

#include "core/deck/named_enum.hpp"

namespace llmtrain {

class DeckKeys;
class DeckLoader;

/// Where a part of the state lies while no kernel works on it: with the device, in memory of its host, on a local disk.
enum class Offload : uint8_t { none, cpu, nvme };

/// [parallel]
struct ParallelConfig {
  int64_t zero = 1;              ///< ZeRO stage 0..3
  int64_t reduction_groups = 0;  ///< G; 0 = one micro-batch per group
  int64_t reduction_blocks = 1;  ///< H; at most the number of groups
  bool cuda_graphs = true;       ///< no effect on the host
  Offload offload_optimizer = Offload::none;
  Offload offload_parameters = Offload::none;  ///< at stage 3
  std::string offload_path;                    ///< of Offload::nvme

  bool uses_disk() const { return offload_optimizer == Offload::nvme || offload_parameters == Offload::nvme; }

  void visit(DeckKeys& keys);
  void resolve(DeckLoader& deck, int64_t micro_batches) const;  ///< checks only
};

template <>
inline constexpr auto enum_names<Offload> = name_list("none", "cpu", "nvme");

}  // namespace llmtrain
