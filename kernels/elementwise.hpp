#pragma once
#include <span>

#include "core/batch.hpp"
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
/// out = (out + in[0]) + in[1] ..., or out = in[0] + in[1] ... (first), from the left; fp32, elementwise, in one pass.
void add_in_order(const Tensor& out, std::span<const Tensor> in, bool first, Stream& stream);
/// out += in, or out = in (first); fp32, elementwise.
inline void add_into(const Tensor& out, const Tensor& in, bool first, Stream& stream) {
  add_in_order(out, {&in, 1}, first, stream);
}
void fill(const Tensor& out, float value, Stream& stream);
/// int64.
void fill_integer(const Tensor& out, int64_t value, Stream& stream);
/// out[i] = normal(0, std) as a function of (key, first_element + i) by Box-Muller in double; fp32.
void fill_normal(const Tensor& out, double std, uint64_t key, int64_t first_element, Stream& stream);
/// out[i] = uniform in (-bound, bound) as a function of (key, first_element + i); fp32.
void fill_uniform(const Tensor& out, double bound, uint64_t key, int64_t first_element, Stream& stream);

}  // namespace llmtrain
