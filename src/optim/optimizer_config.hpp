#pragma once
#include <cstdint>

#include "core/deck/named_enum.hpp"

namespace llmtrain {

class DeckKeys;
class DeckLoader;

/// [optimizer]
struct OptimizerConfig {
  enum class Name : uint8_t { adamw, adamw_8bit, paged_adamw, paged_adamw_8bit, sgd, lion, adafactor };

  Name name = Name::adamw;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double momentum = 0;  ///< of sgd
  bool nesterov = false;
  // Of adafactor.
  double clip_threshold = 1;
  bool scale_parameter = false;
  bool relative_step = false;
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
                                                                    "paged_adamw_8bit", "sgd", "lion", "adafactor");
}  // namespace llmtrain
