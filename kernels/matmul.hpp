#pragma once
// Matrix products of linear layers. Row-major; w is [M, K] (out, in). x, w, dy, dx have one compute dtype (fp32, bf16
// or fp16), accumulation is fp32. The order of summation of an element depends only on the shape: tiles may run on any
// thread, the inner dimension is never divided among threads. A w of 4 bits gives the bits of the matrix that it is
// dequantised to, but on a GPU in decoding, where its codes are read directly. int8 is LLM.int8: forward products are
// those of codes and of outliers (int8_arithmetic.hpp), gradients those of the dequantised matrix. Primitives are
// created once per shape and kept.

#include <cstdint>
#include <string>

#include "core/tensor.hpp"
#include "device/device.hpp"
#include "kernels/quantized_matrix.hpp"

namespace llmtrain {

/// Sets whether products of fp32 operands round them to tf32 (10 bits of mantissa), on a device that supports tf32;
/// elsewhere it has no effect. Returns true if this device does.
bool use_tf32(bool wanted);

/// True if products of bf16 operands are faster than those of fp32 ones (the default of precision.compute): on this
/// device, with the libraries of this build.
bool bf16_products_are_fast();
/// Note for the log if products are slower with the libraries of this build than the device allows, with the remedy;
/// usually empty.
std::string slow_products_note();

/// Library that chooses the algorithms of products on a GPU, and thereby their order of summation, with its version:
/// "cuBLASLt 12.8.5"; empty on the host. Needs no device.
std::string product_library();

/// Row length in elements. On a GPU rows of y without a bias, and of dy beside w or dw, may be padded to this length;
/// the contents past column M do not change.
constexpr int64_t padded_columns(int64_t m) { return (m + 63) / 64 * 64; }

/// The role of a forward product. A training batch has the number of rows that the deck sets, and the order of
/// summation depends on that number. The other two are batch-invariant: the bits of a row of y are a function of that
/// row of x, of w, bias and the types, independent of the number of rows and of its position among them. On the host
/// they have one order, which is that of many rows in training; few rows read weights in place, at the speed of memory.
/// On a GPU prefill is fast for many rows, decoding for few, and each has an order of its own: cuBLASLt's choice for a
/// fixed number of rows serves all; a library that rejects it for fewer rows is queried for another one.
enum class ProductRole : uint8_t { training, prefill, decoding };

/// A second product that is added to a first one: left [N, R] times right, both in the compute dtype; R is small. If
/// all its elements are zero, the bits of the sum are those of the first product. Empty: none.
struct LowRank {
  Tensor left = {};
  Tensor right = {};

  bool empty() const { return left.empty(); }
  int64_t rank() const { return empty() ? 0 : left.dim(1); }  ///< R
};

/// y[N, M] = x[N, K] w[M, K]^T + bias[M] + added.left[N, R] added.right[M, R]^T; y is fp32 or the compute dtype; an
/// empty bias means none.
void linear_forward(const Tensor& y, const Tensor& x, const WeightMatrix& w, const Tensor& bias, Stream& stream,
                    ProductRole role = ProductRole::training, const LowRank& added = {});

/// dx[N, K] = dy[N, M] w[M, K] + added.left[N, R] added.right[R, K], or += with accumulate. dx is fp32 or the compute
/// dtype (accumulate requires fp32).
void linear_backward_input(const Tensor& dx, const Tensor& dy, const WeightMatrix& w, bool accumulate, Stream& stream,
                           const LowRank& added = {});

/// dw[M, K] (fp32) = dy[N, M]^T x[N, K], or += with accumulate.
void linear_backward_weight(const Tensor& dw, const Tensor& dy, const Tensor& x, bool accumulate, Stream& stream);

/// The same for rows [first, first + B) of dw: dw[B, K] = columns [first, first + B) of dy[N, M], transposed, times x.
/// On the host the bits are those of the whole product.
void linear_backward_weight_rows(const Tensor& dw, int64_t first, const Tensor& dy, const Tensor& x, bool accumulate,
                                 Stream& stream);

/// db[M] (fp32) = sum over rows of dy[N, M], or +=. Rows are summed in fixed blocks.
void linear_backward_bias(const Tensor& db, const Tensor& dy, bool accumulate, Stream& stream);

/// Bytes of device memory that products keep beside their operands, after the first one. Needs no device.
int64_t matmul_workspace_bytes();

}  // namespace llmtrain
