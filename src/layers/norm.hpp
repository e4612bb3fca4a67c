#pragma once
#include <string>

#include "kernels/norm.hpp"
#include "layers/context.hpp"
#include "layers/saved.hpp"

namespace llmtrain {

/// Per-row statistics kept for the backward pass, fp32 [N]; mean stays empty for RMSNorm.
struct NormSaved {
  Tensor mean;
  Tensor rstd;
};

/// Properties that all norms of a model share.
struct NormShape {
  NormKind kind = NormKind::layernorm;
  double epsilon = 1e-5;
  bool bias = true;            ///< LayerNorm only
  bool zero_centered = false;  ///< weights are stored as their distance from 1 (Gemma)
  int64_t channels = 0;

  Initializer initial_weight() const { return zero_centered ? Initializer::zeros() : Initializer::ones(); }
};

/// Without a weight there is no norm: x stays as it is.
struct Norm {
  NormKind kind = NormKind::layernorm;
  float epsilon = 1e-5f;
  float weight_offset = 0;
  ParamRef weight;
  ParamRef bias;

  template <class F>
  void visit_saved(NormSaved& s, DType /*compute*/, int64_t rows, const F& f, const char* part = "") const {
    if (!exists()) return;
    if (kind == NormKind::layernorm) f(s.mean, {part, ".mean", DType::f32, rows, 0});
    f(s.rstd, {part, ".rstd", DType::f32, rows, 0});
  }

  bool exists() const { return weight.exists(); }
  bool is_trained() const { return weight.is_trained() || bias.is_trained(); }
  /// True if this rank holds weight and bias all the time: to acquire them gathers nothing.
  bool is_whole(const ParamStore& params) const {
    const auto whole = [&](const ParamRef& p) { return !p.exists() || params.units()[p.unit].whole; };
    return whole(weight) && whole(bias);
  }
  /// Acquires the units of weight and bias, which differ if only one of them is trained.
  void acquire(ParamStore& params) const {
    params.acquire(weight.unit);
    if (is_divided()) params.acquire(bias.unit);
  }
  void release(ParamStore& params) const {
    params.release(weight.unit);
    if (is_divided()) params.release(bias.unit);
  }
  static Norm declare(UnitBuilder& unit, const std::string& name, const NormShape& shape);

  /// x fp32 [N, C] -> y [N, C] in y's dtype. again: `saved` already holds the statistics of x.
  void forward(Context& ctx, const Tensor& y, const Tensor& x, const NormSaved& saved, bool again = false) const;
  /// Sets or adds the gradient to dx (fp32); dy in any dtype.
  void backward(Context& ctx, const Tensor& dx, const Tensor& dy, const Tensor& x, const NormSaved& saved,
                bool accumulate_dx) const;
  /// Computes x = in + branch, then forward.
  void forward_sum(Context& ctx, const Tensor& y, const Tensor& x, const NormSaved& saved, const Tensor& in,
                   const ResidualBranch& branch, bool again = false) const;
  /// Computes backward, then the branch's gradient from dx.
  void backward_sum(Context& ctx, const Tensor& dx, const Tensor& dy, const Tensor& x, const NormSaved& saved,
                    bool accumulate_dx, const ResidualBranch& branch) const;

 private:
  bool is_divided() const { return bias.exists() && bias.unit != weight.unit; }
  NormForward forward_args(const Context& ctx, const Tensor& y, const Tensor& x, const NormSaved& saved,
                           bool again) const;
  NormBackward backward_args(Context& ctx, const Tensor& dx, const Tensor& dy, const Tensor& x, const NormSaved& saved,
                             bool accumulate_dx) const;
};

}  // namespace llmtrain
