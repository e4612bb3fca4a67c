#include "kernels/cuda/cudnn_attention_graph.hpp"

namespace llmtrain::cuda {

namespace {

/// Dimensions and strides of what lies in memory or has the form of scores.
class Shapes {
 public:
  explicit Shapes(const CudnnAttention& a)
      : a_(a), row_((a.heads + 2 * a.kv_heads) * a.head_dim), out_row_(a.heads * a.head_dim) {}

  CudnnDims queries() const { return {a_.batch, a_.heads, a_.length, a_.head_dim}; }
  CudnnDims keys() const { return {a_.batch, a_.kv_heads, a_.length, a_.head_dim}; }
  CudnnDims keys_transposed() const { return {a_.batch, a_.kv_heads, a_.head_dim, a_.length}; }
  CudnnDims scores() const { return {a_.batch, a_.heads, a_.length, a_.length}; }
  CudnnDims rows() const { return {a_.batch, a_.heads, a_.length, 1}; }

  /// In qkv [B T, (H + 2 G) D].
  CudnnDims in_qkv() const { return {a_.length * row_, a_.head_dim, row_, 1}; }
  CudnnDims in_qkv_transposed() const { return {a_.length * row_, a_.head_dim, 1, row_}; }
  /// In out [B T, H D].
  CudnnDims in_out() const { return {a_.length * out_row_, a_.head_dim, out_row_, 1}; }
  CudnnDims scores_transposed() const {
    return {a_.heads * a_.length * a_.length, a_.length * a_.length, 1, a_.length};
  }

 private:
  CudnnAttention a_;
  int64_t row_, out_row_;
};

class Builder {
 public:
  Builder(CudnnGraph& graph, const CudnnAttention& a) : g_(graph), a_(a), s_(a), scale_(graph.number(id_scale)) {}

  void forward() {
    const CudnnValue value = g_.stored(id_value, a_.type, s_.keys(), s_.in_qkv());
    const CudnnValue out = g_.stored(id_out, a_.type, s_.queries(), s_.in_out());
    const CudnnValue lse = g_.stored(id_lse, CUDNN_DATA_FLOAT, s_.rows(), packed_strides(s_.rows()));
    const CudnnValue seen = visible_scores(query(), key_transposed());
    const CudnnValue highest = row(), difference = scores(), weight = scores(), sum = row(), log_sum = row();
    const CudnnValue probability = g_.passing(a_.type, s_.scores());
    g_.reduce(CUDNN_REDUCE_TENSOR_MAX, seen, highest);
    g_.apply(CUDNN_POINTWISE_SUB, seen, highest, difference);
    g_.apply(CUDNN_POINTWISE_EXP, difference, weight);
    g_.reduce(CUDNN_REDUCE_TENSOR_ADD, weight, sum);
    g_.apply(CUDNN_POINTWISE_LOG, sum, log_sum);
    g_.apply(CUDNN_POINTWISE_ADD, highest, log_sum, lse);
    g_.apply(CUDNN_POINTWISE_DIV, weight, sum, probability);
    g_.matmul(probability, value, out);
  }

  /// P = exp(scores - lse), dV = P^T dO, dP = dO V^T, dS = P (dP - delta) scale, dK = dS^T Q, dQ = dS K.
  void backward() {
    const CudnnValue out = g_.stored(id_out, a_.type, s_.queries(), s_.in_out());
    const CudnnValue dout = g_.stored(id_dout, a_.type, s_.queries(), s_.in_out());
    const CudnnValue lse = g_.stored(id_lse, CUDNN_DATA_FLOAT, s_.rows(), packed_strides(s_.rows()));
    const CudnnValue delta = g_.stored(id_delta, CUDNN_DATA_FLOAT, s_.rows(), packed_strides(s_.rows()));
    const CudnnValue products = g_.passing(CUDNN_DATA_FLOAT, s_.queries()), sum = row();
    g_.apply(CUDNN_POINTWISE_MUL, dout, out, products);
    g_.reduce(CUDNN_REDUCE_TENSOR_ADD, products, sum);
    g_.apply(CUDNN_POINTWISE_MUL, sum, g_.number(id_one), delta);  // the library looks for a scale here

    const CudnnValue q = query(), kt = key_transposed();
    const CudnnValue seen = visible_scores(q, kt), difference = scores(), probability = scores();
    g_.apply(CUDNN_POINTWISE_SUB, seen, lse, difference);
    g_.apply(CUDNN_POINTWISE_EXP, difference, probability);
    to_keys(probability, dout, id_dvalue);

    const CudnnValue vt = g_.stored(id_value, a_.type, s_.keys_transposed(), s_.in_qkv_transposed());
    const CudnnValue dp = scores(), centered = scores(), weighted = scores(), ds = scores();
    g_.matmul(dout, vt, dp);
    g_.apply(CUDNN_POINTWISE_SUB, dp, delta, centered);
    g_.apply(CUDNN_POINTWISE_MUL, centered, probability, weighted);
    g_.apply(CUDNN_POINTWISE_MUL, weighted, scale_, ds);
    to_keys(ds, q, id_dkey);

    const CudnnValue key = g_.passing(a_.type, s_.keys(), s_.in_qkv());
    g_.reshape(kt, key);
    g_.matmul(ds, key, g_.stored(id_dquery, a_.type, s_.queries(), s_.in_qkv()));
  }

 private:
  CudnnValue scores() { return g_.passing(CUDNN_DATA_FLOAT, s_.scores()); }
  CudnnValue row() { return g_.passing(CUDNN_DATA_FLOAT, s_.rows()); }
  CudnnValue query() { return g_.stored(id_query, a_.type, s_.queries(), s_.in_qkv()); }
  CudnnValue key_transposed() { return g_.stored(id_key, a_.type, s_.keys_transposed(), s_.in_qkv_transposed()); }

  /// Scaled; where the key comes after the query, id_lowest.
  CudnnValue visible_scores(const CudnnValue& q, const CudnnValue& kt) {
    const CudnnValue product = scores(), scaled = scores(), seen = scores();
    const CudnnValue query_index = g_.passing(CUDNN_DATA_INT32, s_.scores());
    const CudnnValue key_index = g_.passing(CUDNN_DATA_INT32, s_.scores());
    const CudnnValue mask = g_.passing(CUDNN_DATA_BOOLEAN, s_.scores());
    g_.matmul(q, kt, product);
    g_.apply(CUDNN_POINTWISE_MUL, product, scale_, scaled);
    g_.index(2, scaled, query_index);
    g_.index(3, scaled, key_index);
    g_.compare(CUDNN_POINTWISE_CMP_GE, query_index, key_index, mask);
    g_.select(mask, scaled, g_.number(id_lowest), seen);
    return seen;
  }

  /// weights^T rows, of query heads; then the sum over those of a key head.
  void to_keys(const CudnnValue& weights, const CudnnValue& rows, int64_t id) {
    const CudnnValue transposed = g_.passing(a_.type, s_.scores(), s_.scores_transposed());
    g_.reshape(weights, transposed);
    const CudnnValue result = g_.stored(id, a_.type, s_.keys(), s_.in_qkv());
    if (a_.heads == a_.kv_heads) return g_.matmul(transposed, rows, result);
    const CudnnValue of_query_heads = g_.passing(a_.type, s_.queries());
    g_.matmul(transposed, rows, of_query_heads);
    g_.reduce(CUDNN_REDUCE_TENSOR_ADD, of_query_heads, result);
  }

  CudnnGraph& g_;
  CudnnAttention a_;
  Shapes s_;
  CudnnValue scale_;
};

}  // namespace

void build_attention(CudnnGraph& graph, const CudnnAttention& a) {
  Builder builder(graph, a);
  a.backward ? builder.backward() : builder.forward();
}

int64_t max_cudnn_workspace_bytes(const CudnnAttention& a) {
  constexpr int64_t tile = 128, slack = int64_t{1} << 20;
  const int64_t length = (a.length + tile - 1) / tile * tile;
  const int64_t scores = a.batch * a.heads * length * length * 2;
  const int64_t full_heads = a.heads == a.kv_heads ? 0 : 2 * a.batch * a.heads * length * a.head_dim * 2;
  return scores + full_heads + slack;
}

}  // namespace llmtrain::cuda
