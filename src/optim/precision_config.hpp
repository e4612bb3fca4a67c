#pragma once
#include <cstdint>

#include "core/deck/named_enum.hpp"
#include "core/dtype.hpp"

namespace llmtrain {

class DeckKeys;
class DeckLoader;

/// [precision]
struct PrecisionConfig {
  enum class Compute : uint8_t { automatic, fp32, tf32, bf16, fp16 };

  Compute compute = Compute::automatic;  ///< automatic: the best type of the device (RunFacts)

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

/// Dtype of weights and activations; not of `automatic`.
DType compute_dtype(PrecisionConfig::Compute compute);

template <>
inline constexpr auto enum_names<PrecisionConfig::Compute> = name_list("auto", "fp32", "tf32", "bf16", "fp16");

}  // namespace llmtrain
