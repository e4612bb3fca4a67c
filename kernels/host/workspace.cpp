#include "kernels/workspace.hpp"

#include <algorithm>

#include "kernels/host/column_sum.hpp"
#include "kernels/host/parallel.hpp"
#include "kernels/host/product/gemm.hpp"
#include "kernels/host/product/int8_product.hpp"
#include "kernels/host/product/product_shapes.hpp"

namespace llmtrain {

int64_t row_sum_workspace_bytes(int64_t rows, int64_t columns) {
  return host::workspace_alignment + host::column_sum_floats(rows, columns) * static_cast<int64_t>(sizeof(float));
}

int64_t linear_workspace_bytes(const LinearPass& pass, int64_t rows) {
  const auto& [in, out, bias, compute, output, forward, backward, rank, quantized, wide] = pass;
  int64_t bytes = bias && backward ? row_sum_workspace_bytes(rows, out) : 0;
  const auto product = [&](host::GemmShape shape) {
    shape.rank = shape.a_transposed ? 0 : pass.rank;
    shape.quantized = pass.quantized.has_value() && !shape.a_transposed;
    bytes = std::max(bytes, host::workspace_alignment + host::gemm_workspace_bytes(shape));
  };
  const bool int8 = quantized == QuantizedType::int8;
  if (forward && int8) bytes = std::max(bytes, host::workspace_alignment + host::int8_workspace_bytes(rows, in));
  // Fewer rows may be divided into other tiles, which sometimes need more; the division changes at multiples of 64.
  for (int64_t n = rows; n > 0; n = (n - 1 - n / 256) / 64 * 64) {
    const ProductShape shape{n, out, in};
    if (forward && !int8) {
      host::GemmShape forward_shape = host::forward_shape(shape, compute, output);
      product(forward_shape);
      forward_shape.any_rows = true;
      product(forward_shape);
    }
    if (!backward) continue;
    product(host::backward_input_shape(shape, compute, wide ? DType::f32 : compute, false));
    product(host::backward_weight_shape(shape, compute, false));
  }
  return bytes;
}

namespace {

Tensor& workspace_of_thread() {
  static thread_local Tensor memory;
  return memory;
}

}  // namespace

void set_workspace(const Tensor& memory) {
  workspace_of_thread() = memory;
  host::set_workspace(static_cast<char*>(memory.data), memory.empty() ? 0 : memory.bytes());
}

Tensor current_workspace() { return workspace_of_thread(); }

int64_t workspace_peak() { return host::workspace_peak(); }

}  // namespace llmtrain
