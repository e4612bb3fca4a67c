#pragma once
#include <cstdint>

#include "core/deck/named_enum.hpp"

namespace llmtrain {

class DeckKeys;
class DeckLoader;

/// [optimizer]
struct OptimizerConfig {
  enum class Name : uint8_t { adamw };

  Name name = Name::adamw;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.01;  ///< on matrices and embeddings only
  double max_grad_norm = 1.0;  ///< 0 = no clipping

  void visit(DeckKeys& keys);
};

template <>
inline constexpr auto enum_names<OptimizerConfig::Name> = name_list("adamw");
}  // namespace llmtrain
