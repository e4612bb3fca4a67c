#pragma once
// Hook for tests that change numbers of one rank where they arise. The program leaves it empty.

#include <cstdint>

#include "core/tensor.hpp"
#include "device/device.hpp"

namespace llmtrain {

enum class NumberKind : uint8_t {
  gradient,  ///< fp32 [elements] of a segment: the gradient of a group, before it is hashed or exchanged
  weights,   ///< [outputs, inputs], in the compute dtype, before a product in a forward pass
  result     ///< [rows, outputs], of this product
};

/// Called for every such tensor of a unit if not null.
inline void (*number_hook)(NumberKind kind, int64_t unit, const Tensor& values, Stream& stream) = nullptr;

}  // namespace llmtrain
