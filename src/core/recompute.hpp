#pragma once
#include <cstdint>

#include "core/deck/named_enum.hpp"

namespace llmtrain {

/// What the forward pass drops and the backward pass computes again, with the same kernels from the same numbers, so
/// to the same bits. Each level drops what those before it drop.
enum class Recompute : uint8_t {
  none,        ///< results of norms: one pass over the residual stream gives them back
  activation,  ///< results of the activation function
  attention,   ///< queries, keys and values, and the output of attention
  block        ///< everything but the input of each block
};

template <>
inline constexpr auto enum_names<Recompute> = name_list("none", "activation", "attention", "block");

}  // namespace llmtrain
