#pragma once
#include <cstdint>
#include <string>

#include "core/deck_value.hpp"
#include "core/named_enum.hpp"
#include "core/recompute.hpp"
#include "parallel/offload.hpp"

namespace llmtrain {

class DeckKeys;
class DeckLoader;

/// [parallel]
struct ParallelConfig {
  int64_t zero = 1;              ///< ZeRO stage 0..3
  int64_t reduction_groups = 0;  ///< G; 0 = one micro-batch per group
  int64_t reduction_blocks = 1;  ///< H; at most the number of groups
  Offload offload_optimizer = Offload::none;
  Offload offload_parameters = Offload::none;  ///< at stage 3
  std::string offload_path;                    ///< of Offload::nvme

  bool uses_disk() const { return offload_optimizer == Offload::nvme || offload_parameters == Offload::nvme; }

  void visit(DeckKeys& keys);
  void resolve(DeckLoader& deck, int64_t micro_batches) const;  ///< checks only
};

/// [precision]
struct PrecisionConfig {
  enum class Compute : uint8_t { automatic, fp32, bf16 };

  Compute compute = Compute::automatic;  ///< the program replaces automatic by what suits the device

  void visit(DeckKeys& keys);
};

/// [memory]
struct MemoryConfig {
  Recompute recompute = Recompute::none;
  int64_t limit = 0;  ///< bytes per rank; 0 = this rank's share of what the node has

  void visit(DeckKeys& keys);
};

/// [watchdog]; see watchdog.hpp.
struct WatchdogConfig {
  bool enabled = true;
  Duration lost_after{2 * 60};       ///< without a sign of life
  Duration stuck_after{15 * 60};     ///< without progress
  Duration io_stuck_after{30 * 60};  ///< without progress where files are read or written

  void visit(DeckKeys& keys);
  void resolve(DeckLoader& deck) const;  ///< checks only
};

template <>
inline constexpr auto enum_names<PrecisionConfig::Compute> = name_list("auto", "fp32", "bf16");

}  // namespace llmtrain
