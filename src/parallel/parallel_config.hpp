#pragma once
#include <cstdint>
#include <string>

#include "core/deck/deck_value.hpp"
#include "core/deck/named_enum.hpp"
#include "core/dtype.hpp"
#include "core/recompute.hpp"
#include "parallel/offload.hpp"

namespace llmtrain {

class DeckKeys;
class DeckLoader;

/// [parallel]
struct ParallelConfig {
  int64_t zero = 1;              ///< ZeRO stage 0..3
  int64_t reduction_groups = 0;  ///< G; 0 = one micro-batch per group
  int64_t reduction_blocks = 1;  ///< H; not more than the number of groups
  bool cuda_graphs = true;       ///< no effect on the host
  Offload offload_optimizer = Offload::none;
  Offload offload_parameters = Offload::none;  ///< at ZeRO stage 3
  std::string offload_path;                    ///< folder for Offload::nvme

  bool uses_disk() const { return offload_optimizer == Offload::nvme || offload_parameters == Offload::nvme; }

  void visit(DeckKeys& keys);
  void resolve(DeckLoader& deck, int64_t micro_batches) const;  ///< checks only
};

/// [precision]
struct PrecisionConfig {
  enum class Compute : uint8_t { automatic, fp32, tf32, bf16, fp16 };

  Compute compute = Compute::automatic;  ///< the program replaces automatic by the device's best type

  // Loss scaling with fp16, see loss_scale.hpp.
  static constexpr double dynamic = 0;
  double loss_scale = dynamic;  ///< fixed, or dynamic
  double initial_loss_scale = 65536;
  int64_t loss_scale_window = 2000;   ///< steps without overflow after which it doubles
  int64_t loss_scale_hysteresis = 1;  ///< overflows after which it is halved
  double min_loss_scale = 1;

  void visit(DeckKeys& keys);
  void resolve(DeckLoader& deck) const;  ///< checks only
};

/// Dtype of weights and activations, for a resolved configuration.
DType compute_dtype(const PrecisionConfig& precision);

/// [memory]
struct MemoryConfig {
  Recompute recompute = Recompute::none;
  int64_t limit = 0;  ///< bytes per rank; 0 = this rank's share of what its node or GPU has

  void visit(DeckKeys& keys);
};

/// [watchdog]; see watchdog.hpp.
struct WatchdogConfig {
  bool enabled = true;
  Duration lost_after{2 * 60};       ///< without a heartbeat
  Duration stuck_after{15 * 60};     ///< without progress
  Duration io_stuck_after{30 * 60};  ///< without progress while reading or writing files

  void visit(DeckKeys& keys);
  void resolve(DeckLoader& deck) const;  ///< checks only
};

template <>
inline constexpr auto enum_names<PrecisionConfig::Compute> = name_list("auto", "fp32", "tf32", "bf16", "fp16");

}  // namespace llmtrain
