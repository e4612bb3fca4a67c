#pragma once
#include "core/host_device.hpp"

namespace llmtrain {

/// Rounds the product, which some compilers would otherwise fuse with the following sum or difference.
LLMTRAIN_HOST_DEVICE inline float rounded_product(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(a, b);
#elif !defined(__CUDACC__) && __has_builtin(__builtin_assoc_barrier)  // GCC; nvcc also parses this, but lacks it
  return __builtin_assoc_barrier(a * b);
#else
  return a * b;
#endif
}

}  // namespace llmtrain
