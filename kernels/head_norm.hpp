#pragma once
#include "core/tensor.hpp"
#include "device/device.hpp"

namespace llmtrain {

/// Heads of a row of qkv [N, (H + 2 G) D]: H queries, G keys, G values.
struct HeadNormShape {
  int64_t heads = 1;
  int64_t kv_heads = 1;
  int64_t head_dim = 1;
  float epsilon = 1e-6f;
  float weight_offset = 0;  ///< 1 if weights are stored as their distance from 1
};

/// RMSNorm of every head's query and key (Qwen3): x -> x rstd (offset + weight), each over its D elements, in place in
/// qkv (fp32 or bf16). raw [N, (H + G) D], in qkv's dtype, and rstd fp32 [N, H + G] are kept for the backward pass.
/// Weights [D] in the compute dtype. Statistics in fp32 or wider.
struct HeadNormForward {
  Tensor qkv;
  Tensor raw;
  Tensor rstd;
  Tensor query_weight;
  Tensor key_weight;
};
void head_norm_forward(const HeadNormForward& args, const HeadNormShape& shape, Stream& stream);

/// Updates dqkv in place: the gradient of the norms' outputs on entry, of their inputs on return. Gradients of the
/// weights, fp32 [D], = or += (accumulate), are summed over rows and heads in fixed blocks. Empty ones are dropped.
struct HeadNormBackward {
  Tensor dqkv;
  Tensor dquery_weight;
  Tensor dkey_weight;
  Tensor raw;
  Tensor rstd;
  Tensor query_weight;
  Tensor key_weight;
  bool accumulate = false;
};
void head_norm_backward(const HeadNormBackward& args, const HeadNormShape& shape, Stream& stream);

}  // namespace llmtrain
