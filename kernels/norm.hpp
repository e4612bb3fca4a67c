#pragma once
#include "core/batch.hpp"
#include "core/tensor.hpp"
#include "device/device.hpp"
#include "kernels/dropout.hpp"

namespace llmtrain {

enum class NormKind : uint8_t { layernorm, rmsnorm };

/// y = (x - mean) * rstd * (weight_offset + weight) + bias per row. LayerNorm: Ba et al. 2016; RMSNorm: Zhang &
/// Sennrich 2019 (mean = 0, no bias). x fp32 [N, C] (the residual stream), y compute dtype [N, C], weight and bias [C]
/// in the compute dtype (an empty bias means none), mean and rstd fp32 [N] are kept for the backward pass (RMSNorm does
/// not use mean, which may be empty). Statistics in fp32 or wider.
struct NormForward {
  NormKind kind;
  Tensor y;
  Tensor mean;
  Tensor rstd;
  Tensor x;
  Tensor weight;
  Tensor bias;
  float epsilon;
  float weight_offset = 0;  ///< 1 if weights are stored as their distance from 1 (Gemma)
  bool again = false;       ///< mean and rstd already hold the statistics of x, and need not be computed
};
void norm_forward(const NormForward& args, Stream& stream);

/// A branch of the residual stream that is added just before a norm.
struct ResidualBranch {
  Tensor delta;  ///< fp32 or compute dtype [N, C]; in the backward pass its gradient
  const Batch& batch;
  Dropout dropout;
};
/// Computes residual_add(args.x, in, branch), then norm_forward, bit for bit. On a GPU the sum is not read back from
/// memory.
void residual_norm_forward(const NormForward& args, const Tensor& in, const ResidualBranch& branch, Stream& stream);

struct NormBackward {
  NormKind kind;
  Tensor dx;       ///< fp32 [N, C]; = or += (accumulate_dx)
  Tensor dweight;  ///< fp32 [C]; = or += (accumulate_params); empty if it is not needed
  Tensor dbias;    ///< the same
  Tensor dy;       ///< compute dtype [N, C]
  Tensor x;        ///< fp32 [N, C]
  Tensor weight;   ///< compute dtype [C]
  Tensor mean;
  Tensor rstd;
  float weight_offset = 0;
  bool accumulate_dx = false;
  bool accumulate_params = false;

  NormBackward rows(int64_t first, int64_t count) const {
    NormBackward part = *this;
    for (Tensor* t : {&part.dx, &part.dy, &part.x, &part.mean, &part.rstd}) {
      if (!t->empty()) *t = t->rows(first, count);
    }
    return part;
  }
};
/// Sums dweight and dbias over rows in fixed blocks.
void norm_backward(const NormBackward& args, Stream& stream);
/// Computes norm_backward, then residual_add_backward(branch, args.dx), bit for bit. On a GPU dx is not read back from
/// memory.
void residual_norm_backward(const NormBackward& args, const ResidualBranch& branch, Stream& stream);

}  // namespace llmtrain
