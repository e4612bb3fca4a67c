#pragma once
#include <cstdint>

#include "core/batch.hpp"
#include "kernels/logprob.hpp"

namespace llmtrain {

/// A block of rows whose logits exist. Statistics and cotangents are those of its rows.
struct LogitBlock {
  const Batch& batch;
  int64_t first;                      ///< number of its first row among those that this rank has of the pass
  const Tensor& logits;               ///< fp32 [R, V']; contents may be lost
  const Tensor& dlogits;              ///< compute dtype [R, V']; fp32 ones may alias the logits
  const TokenStatistics& statistics;  ///< of which lse and logp are known
  const TokenCotangents& cotangents;
  int64_t vocabulary;  ///< columns that are tokens
  float softcap;       ///< of the logits, whose gradient is the one before the cap; 0: none
};

/// A loss of whole distributions. The head asks it for the gradient of a block of rows in place of that of the
/// statistics, in training.
class LogitLoss {
 public:
  virtual ~LogitLoss() = default;
  /// Writes dlogits, and the statistics of the loss.
  virtual void differentiate(const LogitBlock& block, Stream& stream) = 0;
};

}  // namespace llmtrain
