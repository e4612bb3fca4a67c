#pragma once
#include <string>
#include <vector>

#include "layers/adapter.hpp"
#include "layers/context.hpp"

namespace llmtrain {

/// Rows of a fused matrix under their external names, e.g. {"...q_proj", 64}, {"...k_proj", 16}, {"...v_proj", 16}. The
/// suffixes .weight and .bias are appended.
struct LinearPart {
  std::string name;
  int64_t rows;
  bool transposed = false;  ///< true if files store the transpose
};

/// y = x W^T + b. Several projections of one input are one Linear with several slices, each of which may have an
/// adapter.
struct Linear {
  /// Consecutive rows.
  struct Rows {
    int64_t first, count;
  };

  ParamRef weight;
  ParamRef bias;
  std::vector<Rows> fixed_weight, fixed_bias;  ///< rows that keep their values where others are trained
  int64_t in = 0;
  int64_t out = 0;
  std::optional<QuantizedType> quantized;  ///< storage of the weight, if it has fewer bits
  ParamRef a;                              ///< [R, in]: A of all adapters, one below the other
  std::vector<Adapter> adapters;           ///< all with magnitudes or none, and all with the same dropout
  size_t kept_norms = 0;                   ///< index in KvCache::norms

  static Linear declare(UnitBuilder& unit, const std::vector<LinearPart>& parts, int64_t in, bool bias, double std,
                        const AdapterRule& rule = {});

  /// Bytes of workspace that the kernels need; `output` is y's dtype.
  int64_t workspace_bytes(DType compute, DType output, int64_t rows, bool training) const;
  int64_t scratch_bytes(DType compute, DType output, int64_t rows) const;
  /// x [N, in] -> y [N, out].
  void forward(Context& ctx, const Batch& batch, const Tensor& y, const Tensor& x) const;
  bool is_trained() const { return weight.is_trained() || bias.is_trained() || a.is_trained(); }
  /// Computes the gradients of trained parameters, and dx [N, in] unless it is empty.
  void backward(Context& ctx, const Batch& batch, const Tensor& dx, const Tensor& dy, const Tensor& x) const;
  /// FLOPs of the products of one token's forward and backward pass, with or without the gradient of the input.
  double product_flops(bool input_gradient) const;
  /// Compute the gradient of the weight or bias if it is trained.
  void backward_weight(Context& ctx, const Tensor& dy, const Tensor& x) const;
  void backward_bias(Context& ctx, const Tensor& dy) const;

  bool has_magnitudes() const { return !adapters.empty() && adapters.front().magnitude.exists(); }

  /// Adds the adapters that the rule has for these rows.
  void declare_adapters(UnitBuilder& unit, const std::vector<LinearPart>& parts, const AdapterRule& rule);
};

}  // namespace llmtrain
