#pragma once
#include <cstdint>

#include "core/deck/named_enum.hpp"

namespace llmtrain {

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

}  // namespace llmtrain
