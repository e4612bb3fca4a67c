#pragma once
#include <cstdint>

#include "core/deck/named_enum.hpp"

namespace llmtrain {

class DeckKeys;
class DeckLoader;

/// Activations that the forward pass drops and the backward pass recomputes with the same kernels from the same
/// numbers, so that they are bit-identical. Each level drops what those before it drop.
enum class Recompute : uint8_t {
  none,        ///< outputs of norms: one pass over the residual stream restores them
  activation,  ///< outputs of the activation function
  attention,   ///< queries, keys and values, and the output of attention
  block        ///< everything but the input of each block
};

template <>
inline constexpr auto enum_names<Recompute> = name_list("none", "activation", "attention", "block");

/// [memory]
struct MemoryConfig {
  Recompute recompute = Recompute::none;
  int64_t limit = 0;  ///< bytes per rank; 0 = this rank's share of what its node or GPU has

  void visit(DeckKeys& keys);
};

}  // namespace llmtrain
