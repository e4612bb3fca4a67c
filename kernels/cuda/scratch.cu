#include <algorithm>
#include <vector>

#include "kernels/cuda/int8_product.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/workspace.hpp"

namespace llmtrain {

namespace {

Tensor& planned() {
  static Tensor memory;
  return memory;
}

}  // namespace

void set_workspace(const Tensor& memory) { planned() = memory; }
Tensor current_workspace() { return planned(); }

/// Quantised matrices alone need memory that is worth planning: that of the dequantised one, or of codes of inputs.
int64_t linear_workspace_bytes(const LinearPass& pass, int64_t rows) {
  if (!pass.quantized) return 0;
  const bool int8 = *pass.quantized == QuantizedType::int8, dequantized = !int8 || pass.backward || pass.rank > 0;
  return std::max(int8 ? cuda::int8_scratch_bytes(rows, pass.in, pass.out) : 0,
                  dequantized ? pass.in * pass.out * static_cast<int64_t>(size_of(pass.compute)) : 0);
}
int64_t row_sum_workspace_bytes(int64_t /*rows*/, int64_t /*columns*/) { return 0; }
int64_t workspace_peak() { return 0; }

namespace cuda {

void* scratch(int64_t bytes) {
  if (!planned().empty() && bytes <= planned().bytes()) return planned().data;
  // Buffers are never freed: graphs keep using the one they were recorded with, and at exit the driver may be unloaded
  // first.
  static auto* buffers = new std::vector<DeviceBuffer>(1);
  const int64_t last = buffers->back().bytes();
  if (last < bytes) buffers->emplace_back(std::max(bytes, 2 * last));
  return buffers->back().data();
}

}  // namespace cuda

}  // namespace llmtrain
