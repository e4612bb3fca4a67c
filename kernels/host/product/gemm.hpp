#pragma once
// Blocked matrix product on the host. C is divided into tiles by shape alone; one thread computes a tile from packed
// panels, one k-block after the other, by oneDNN's brgemm micro-kernel (oneapi/dnnl/dnnl_ukernel.h) or, on processors
// without one, by loops in the same order (product_path.hpp selects). So the bits depend on the shape, never on the
// threads. The number of rows, m, affects only the path: k-blocks do not depend on it, and a kernel sums every row
// alike. Few rows multiply weights that are read once, in place where they have the kernel's type.

#include <cstdint>

#include "core/dtype.hpp"
#include "kernels/quantized_matrix.hpp"

namespace llmtrain::host {

/// C[m, n] (+)= A[m, k] B[k, n] (+ P[m, rank] Q[rank, n]) (+ bias[n]); all matrices dense and row-major as stored.
struct GemmShape {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  int64_t rank = 0;           ///< of the added product; 0: none. Then A is not transposed. Q is stored as B is
  bool a_transposed = false;  ///< A is stored [k, m]
  bool b_transposed = false;  ///< B is stored [n, k]
  bool accumulate = false;    ///< C fp32 only
  bool bias = false;
  DType input = DType::f32;   ///< type of A and B: fp32, bf16 or fp16
  DType output = DType::f32;  ///< type of C: fp32 or the type of A and B
  DType bias_type = DType::f32;
  bool any_rows = false;  ///< uses the path for many rows, whatever m
  /// Row length of a transposed A that is a block of columns of a wider one, whose path it uses; 0: A is dense.
  int64_t a_columns = 0;
  bool quantized = false;  ///< B is a QuantizedMatrix, which is dequantised into the input type while it is packed

  bool operator==(const GemmShape&) const = default;
};

/// The first call of a shape creates its kernels; later calls allocate nothing. Packed panels lie in workspace().
/// Callable from several threads at once.
struct GemmOperands {
  const void* a;
  const void* b;
  void* c;
  const void* bias = nullptr;
  const void* p = nullptr;
  const void* q = nullptr;
  const QuantizedMatrix* quantized = nullptr;  ///< instead of b
};
void gemm(const GemmShape& shape, const GemmOperands& operands);
/// Bytes of workspace() for a call by this thread.
int64_t gemm_workspace_bytes(const GemmShape& shape);

}  // namespace llmtrain::host
