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
  bool whole = false;       ///< one norm over the queries of all heads, and one over the keys (OLMoE)

  /// Vectors of a row that are normed: the first ones are queries.
  int64_t queries() const { return whole ? 1 : heads; }
  int64_t normed() const { return whole ? 2 : heads + kv_heads; }
  /// Elements of the vectors, and of the weights.
  int64_t query_width() const { return whole ? heads * head_dim : head_dim; }
  int64_t key_width() const { return whole ? kv_heads * head_dim : head_dim; }
};

/// RMSNorm of every head's query and key (Qwen3), or of all queries and all keys: x -> x rstd (offset + weight), each
/// over its elements, in place in qkv (fp32 or bf16). raw [N, (H + G) D], in qkv's dtype, and rstd fp32 [N, normed()]
/// are kept for the backward pass. Weights [query_width()] and [key_width()] in the compute dtype. Statistics in fp32
/// or wider.
struct HeadNormForward {
  Tensor qkv;
  Tensor raw;
  Tensor rstd;
  Tensor query_weight;
  Tensor key_weight;
};
void head_norm_forward(const HeadNormForward& args, const HeadNormShape& shape, Stream& stream);

/// Updates dqkv in place: the gradient of the norms' outputs on entry, of their inputs on return. Gradients of the
/// weights, fp32, = or += (accumulate), are summed over rows and heads in fixed blocks. Empty ones are dropped.
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
