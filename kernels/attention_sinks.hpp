#pragma once
// Sinks of attention (GPT-OSS, arXiv:2508.10925): a learned logit of each head takes part in the softmax and has no
// value. They follow attention_forward and attention_cached, which know nothing of them, and whose results have the
// plain order [H, N]. With the changed out and lse, attention_backward gives the gradients of queries, keys and values.

#include <cmath>

#include "core/host_device.hpp"
#include "core/tensor.hpp"
#include "device/device.hpp"

namespace llmtrain {

/// out [N, H D] of any dtype and lse, fp32 [H, N], are those of attention without sinks on entry, and with them on
/// return; sinks [H] of any dtype. out sigmoid(lse - sink) replaces out, log(exp(lse) + exp(sink)) replaces lse.
void add_attention_sinks(const Tensor& out, const Tensor& lse, const Tensor& sinks, Stream& stream);

struct AttentionSinksBackward {
  Tensor dsinks;      ///< fp32 [H]
  Tensor dout;        ///< [R, H D], of some rows
  Tensor out;         ///< of these rows, with the sinks; dout's dtype
  Tensor lse;         ///< [H, N] of all rows, with the sinks
  int64_t first_row;  ///< of the rows, in lse
  Tensor sinks;       ///< [H]
  bool accumulate;
};
/// dsinks = or += minus the sum over rows of exp(sink - lse) (dout out), in the order of column sums.
void attention_sinks_backward(const AttentionSinksBackward& args, Stream& stream);

namespace sinks {

/// Factor of the output of a row, and its new lse.
struct Share {
  float factor, lse;
};
LLMTRAIN_HOST_DEVICE inline Share share(float lse, float sink) {
  const float high = lse > sink ? lse : sink, rest = std::exp(-std::abs(lse - sink));
  return {(lse > sink ? 1.0f : rest) / (1.0f + rest), high + std::log1p(rest)};
}

}  // namespace sinks

inline void check_sinks(const Tensor& out, const Tensor& lse, const Tensor& sinks) {
  LLMTRAIN_CHECK(sinks.numel() > 0 && lse.dtype == DType::f32 && lse.numel() % sinks.numel() == 0 && out.rank == 2 &&
                     out.dim(1) % sinks.numel() == 0,
                 "sinks [H], lse fp32 [H, N] and out [N, H D]");
}

}  // namespace llmtrain
