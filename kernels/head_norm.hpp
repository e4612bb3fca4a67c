#pragma once
#include "core/error.hpp"
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
  int64_t blocks = 1;       ///< whole norms are over the heads of so many blocks, of which this is one

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
/// or wider. Norms of several blocks get sums over the blocks of head_norm_squares(), fp32 [N, 2].
struct HeadNormForward {
  Tensor qkv;
  Tensor raw;
  Tensor rstd;
  Tensor query_weight;
  Tensor key_weight;
  Tensor squares = {};
};
void head_norm_forward(const HeadNormForward& args, const HeadNormShape& shape, Stream& stream);
/// squares, fp32 [N, 2]: the sums of squares of the queries and of the keys of rows, for whole norms.
void head_norm_squares(const Tensor& squares, const Tensor& qkv, const HeadNormShape& shape, Stream& stream);

/// Updates dqkv in place: the gradient of the norms' outputs on entry, of their inputs on return. Gradients of the
/// weights, fp32, = or += (accumulate), are summed over rows and heads in fixed blocks. Empty ones are dropped. Norms
/// of several blocks get sums over the blocks of head_norm_products(), fp32 [N, 2].
struct HeadNormBackward {
  Tensor dqkv;
  Tensor dquery_weight;
  Tensor dkey_weight;
  Tensor raw;
  Tensor rstd;
  Tensor query_weight;
  Tensor key_weight;
  bool accumulate = false;
  Tensor products = {};
};
void head_norm_backward(const HeadNormBackward& args, const HeadNormShape& shape, Stream& stream);
/// products, fp32 [N, 2]: the sums of dy (offset + weight) x rstd over the queries and over the keys of rows, for whole
/// norms.
void head_norm_products(const Tensor& products, const HeadNormBackward& args, const HeadNormShape& shape,
                        Stream& stream);

inline void check_whole_norms(const Tensor& sums, const Tensor& qkv, const HeadNormShape& s) {
  LLMTRAIN_CHECK(s.whole && sums.dtype == DType::f32 && sums.numel() == 2 * qkv.dim(0), "sums must be fp32 [N, 2]");
}

}  // namespace llmtrain
