#pragma once
#include <array>
#include <cstdint>

#include "core/deck/named_enum.hpp"

namespace llmtrain {

class DeckKeys;
class DeckLoader;

/// [optimizer]
struct OptimizerConfig {
  enum class Name : uint8_t { adamw, adamw_8bit, paged_adamw, paged_adamw_8bit, sgd, lion, adafactor, muon };
  enum class AdjustLr : uint8_t { original, match_rms_adamw };

  Name name = Name::adamw;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double momentum = 0;  ///< of sgd and muon
  bool nesterov = false;
  // Keys of adafactor.
  double clip_threshold = 1;
  bool scale_parameter = false;
  bool relative_step = false;
  // Settings of muon; the last two are not keys.
  AdjustLr adjust_lr_fn = AdjustLr::original;
  std::array<double, 3> ns_coefficients{3.4445, -4.7750, 2.0315};
  double ns_epsilon = 1e-7;
  double weight_decay = 0.01;  ///< on matrices and embeddings only
  double max_grad_norm = 1.0;  ///< 0 = no clipping

  /// True if the states may lie in host memory: they are offloaded unless the deck says otherwise.
  bool paged() const { return name == Name::paged_adamw || name == Name::paged_adamw_8bit; }

  void visit(DeckKeys& keys);
  /// Sets what the optimizer's library has as default, and marks keys that it does not use.
  void resolve(DeckLoader& deck);
};

template <>
inline constexpr auto enum_names<OptimizerConfig::Name> = name_list("adamw", "adamw_8bit", "paged_adamw",
                                                                    "paged_adamw_8bit", "sgd", "lion", "adafactor",
                                                                    "muon");
template <>
inline constexpr auto enum_names<OptimizerConfig::AdjustLr> = name_list("original", "match_rms_adamw");
}  // namespace llmtrain
