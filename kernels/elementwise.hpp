#pragma once
#include <cstdint>
#include <span>

#include "core/batch.hpp"
#include "core/error.hpp"
#include "device/device.hpp"
#include "kernels/dropout.hpp"

namespace llmtrain {

/// out = in + dropout(delta): the residual stream. out and in fp32 [N, C] (may alias), delta compute dtype.
void residual_add(const Tensor& out, const Tensor& in, const Tensor& delta, const Batch& batch, const Dropout& dropout,
                  Stream& stream);

/// ddelta = dropout'(dout): the gradient of a branch's output. dout fp32 [N, C], ddelta compute dtype.
void residual_add_backward(const Tensor& ddelta, const Tensor& dout, const Batch& batch, const Dropout& dropout,
                           Stream& stream);

/// out = in converted; fp32 <-> bf16 or fp16, or a copy.
void cast(const Tensor& out, const Tensor& in, Stream& stream);
/// out[n][c] = sum[n][c] + bias[c], rounded once; sum fp32 [N, C], out and bias [C] fp32 or a 16-bit dtype; an empty
/// bias means none.
void add_bias(const Tensor& out, const Tensor& sum, const Tensor& bias, Stream& stream);
/// out = (out + in[0]) + in[1] ..., or out = in[0] + in[1] ... (first), from the left; fp32, elementwise, in one pass.
void add_in_order(const Tensor& out, std::span<const Tensor> in, bool first, Stream& stream);
/// out += in, or out = in (first); fp32, elementwise.
inline void add_into(const Tensor& out, const Tensor& in, bool first, Stream& stream) {
  add_in_order(out, {&in, 1}, first, stream);
}
/// out = the sum of `in` along a binary tree: after in[i], the two last values are added additions[i] times, and one
/// value remains; fp32, elementwise. in[0] may be `out`. A device keeps partial sums in the other inputs, which are
/// undefined afterwards.
void add_tree(const Tensor& out, std::span<const Tensor> in, std::span<const uint8_t> additions, Stream& stream);
/// Maximum number of values that await their addition in add_tree().
inline constexpr size_t max_tree_depth = 32;
/// Throws Error unless these are arguments of add_bias().
inline void check_bias(const Tensor& out, const Tensor& sum, const Tensor& bias) {
  LLMTRAIN_CHECK(sum.rank == 2 && out.shape == sum.shape && sum.dtype == DType::f32 && bias.numel() == sum.dim(1),
                 "add_bias: an fp32 sum [N, C], and one bias for each column");
}
/// Throws Error unless these are arguments of add_tree().
inline void check_tree(const Tensor& out, std::span<const Tensor> in, std::span<const uint8_t> additions) {
  LLMTRAIN_CHECK(in.size() == additions.size(), "add_tree: a number of additions for each value");
  size_t depth = 0;
  for (size_t k = 0; k < in.size(); ++k) {
    LLMTRAIN_CHECK(out.numel() == in[k].numel() && out.dtype == DType::f32 && in[k].dtype == DType::f32,
                   "add_tree: fp32, one element for each");
    ++depth;
    LLMTRAIN_CHECK(additions[k] < depth && depth <= max_tree_depth, "add_tree: two values for each addition");
    depth -= additions[k];
  }
  LLMTRAIN_CHECK(depth == 1, "add_tree: one value remains");
}
void fill(const Tensor& out, float value, Stream& stream);
/// int64.
void fill_integer(const Tensor& out, int64_t value, Stream& stream);
/// out[i] = normal(0, std) as a function of (key, first_element + i) by Box-Muller in double; fp32.
void fill_normal(const Tensor& out, double std, uint64_t key, int64_t first_element, Stream& stream);
/// out[i] = uniform in (-bound, bound) as a function of (key, first_element + i); fp32.
void fill_uniform(const Tensor& out, double bound, uint64_t key, int64_t first_element, Stream& stream);

}  // namespace llmtrain
