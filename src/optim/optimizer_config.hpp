#pragma once
#include <cstdint>

#include "core/deck/named_enum.hpp"

namespace llmtrain {

class DeckKeys;
class DeckLoader;

/// [optimizer]
struct OptimizerConfig {
  enum class Name : uint8_t { adamw, sgd, lion };

  Name name = Name::adamw;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double momentum = 0;  ///< of sgd
  bool nesterov = false;
  double weight_decay = 0.01;  ///< on matrices and embeddings only
  double max_grad_norm = 1.0;  ///< 0 = no clipping

  void visit(DeckKeys& keys);
  /// Sets what the optimizer's library has as default, and marks keys that it does not use.
  void resolve(DeckLoader& deck);
};

template <>
inline constexpr auto enum_names<OptimizerConfig::Name> = name_list("adamw", "sgd", "lion");
}  // namespace llmtrain
