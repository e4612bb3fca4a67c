#pragma once
// Matrix products of linear layers. Row-major; w is [M, K] (out, in). x, w, dy, dx have one compute dtype (fp32, bf16
// or fp16), accumulation is fp32. Which element is summed in which order depends on the shape alone: tiles may go to
// any thread, the inner dimension is never divided among threads. Primitives are made once per shape and kept.

#include <cstdint>
#include <string>

#include "core/tensor.hpp"
#include "device/device.hpp"

namespace llmtrain {

/// Whether products of fp32 operands round them to tf32 (10 bits of mantissa) from here on, on a device that multiplies
/// such numbers; elsewhere nothing changes. Gives whether this one does.
bool use_tf32(bool wanted);

/// Returns whether products of bf16 operands are faster than those of fp32 ones (the default of precision.compute): on
/// this device, with the libraries of this build.
bool bf16_products_are_fast();
/// For the log: a sentence on the libraries of this build where products are slower with them than the device allows,
/// and how to mend it; mostly empty.
std::string slow_products_note();

/// On a GPU rows of y without a bias, and of dy beside w or dw, may be so long; what lies behind column M stays.
constexpr int64_t padded_columns(int64_t m) { return (m + 63) / 64 * 64; }

/// The purpose of a forward product. A training batch has the rows that the deck gives it, and the order of summation
/// is chosen by their number. The other two are batch-invariant: the bits of a row of y are a function of that row of
/// x, of w, bias and the types, however many rows there are and wherever it lies among them. Prefill is fast for many
/// rows, decoding for few; each has an order of its own. (On a GPU cuBLASLt's choice for a fixed number of rows serves
/// all; a library that refuses it for fewer rows is asked for another one.)
enum class ProductRole : uint8_t { training, prefill, decoding };

/// y[N, M] = x[N, K] w[M, K]^T + bias[M]; y is fp32 or the compute dtype; an empty bias is none.
void linear_forward(const Tensor& y, const Tensor& x, const Tensor& w, const Tensor& bias, Stream& stream,
                    ProductRole role = ProductRole::training);

/// dx[N, K] = dy[N, M] w[M, K], or += with accumulate. dx is fp32 or the compute dtype (accumulate wants fp32).
void linear_backward_input(const Tensor& dx, const Tensor& dy, const Tensor& w, bool accumulate, Stream& stream);

/// dw[M, K] (fp32) = dy[N, M]^T x[N, K], or += with accumulate.
void linear_backward_weight(const Tensor& dw, const Tensor& dy, const Tensor& x, bool accumulate, Stream& stream);

/// db[M] (fp32) = sum over rows of dy[N, M], or +=. Rows are summed in fixed blocks.
void linear_backward_bias(const Tensor& db, const Tensor& dy, bool accumulate, Stream& stream);

/// Bytes of the device that products keep beside their operands, from the first one on. Needs no device.
int64_t matmul_workspace_bytes();

}  // namespace llmtrain
