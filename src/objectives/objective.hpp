#pragma once
#include <memory>

#include "core/batch.hpp"
#include "device/device.hpp"
#include "kernels/logprob.hpp"

namespace llmtrain {

/// A training objective: computes derivatives of the loss from token statistics. It never sees logits.
class Objective {
 public:
  virtual ~Objective() = default;
  /// True if cotangents() needs no statistics, so that one pass over the head computes loss and gradient.
  virtual bool cotangents_known() const = 0;
  /// Fills the non-empty tensors of `out`, fp32 [N]: the derivatives times `scale`, fp32 [1], or 1 if it is empty.
  virtual void cotangents(const Batch& batch, const TokenStatistics& statistics, const TokenCotangents& out,
                          const Tensor& scale, Stream& stream) const = 0;
};

/// The sum over trained tokens of -log p(target), times the batch's loss weights.
std::unique_ptr<Objective> make_cross_entropy();

}  // namespace llmtrain
