#pragma once
// Training objectives: what a step minimises. An objective computes derivatives of the loss from token statistics, and
// the sums from which the loss and further metrics of a step follow. It never sees logits. To add one, add a file with
// its make_ function (docs/design/adding.md).

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "core/arena.hpp"
#include "core/batch.hpp"
#include "data/stream/data_stream.hpp"
#include "device/device.hpp"
#include "kernels/logprob.hpp"
#include "kernels/matmul.hpp"
#include "objectives/dpo_config.hpp"

namespace llmtrain {

/// Requirements of an objective besides the log-probabilities of the targets.
struct ObjectiveNeeds {
  /// The cotangents depend on the statistics, so that the head is run twice: to score, then to differentiate.
  bool statistics_first = false;
  bool entropy = false;    ///< entropies of the tokens' distributions
  bool documents = false;  ///< Batch::documents; the host takes part in every pass
  bool reference = false;  ///< DocumentColumns::references
};

/// A value of a step: factor * sum / count, where the sum runs over all ranks and is exact.
struct MetricSpec {
  std::string_view name;  ///< as in the ledger
  double factor = 1;
  std::string_view label = {};  ///< name on the console; empty: it is not shown there
};

class Objective {
 public:
  virtual ~Objective() = default;
  virtual ObjectiveNeeds needs() const { return {}; }
  /// Registers memory for batches of at most so many segments.
  virtual void plan(Arena& /*arena*/, int64_t /*max_segments*/) {}
  /// Log-probabilities that are compared with those of another pass must not depend on the other rows of a batch.
  ProductRole product_role() const {
    return needs().documents ? ProductRole::prefill : ProductRole::training;
  }
  /// Values of a step, in the order of their sums; the first is the loss.
  virtual std::span<const MetricSpec> metrics() const = 0;
  /// Divisor of a step's sums: the tokens, pairs or sequences that count in it.
  virtual int64_t count(const StepPlan& plan) const = 0;
  /// Fills the non-empty tensors of `out`, fp32 [N]: the derivatives times `scale`, fp32 [1], or 1 if it is empty.
  virtual void cotangents(const Batch& batch, const TokenStatistics& statistics, const TokenCotangents& out,
                          const Tensor& scale, Stream& stream) = 0;
  /// Adds a micro-batch to the sums: int64 [metrics().size(), ExactSum::integer_count].
  virtual void add_sums(const Batch& batch, const TokenStatistics& statistics, const Tensor& sums,
                        Stream& stream) = 0;
};

/// The sum over trained tokens of -log p(target), times the batch's loss weights.
std::unique_ptr<Objective> make_cross_entropy();

/// The weighted sum of preference losses over pairs (dpo_config.hpp).
std::unique_ptr<Objective> make_dpo(const DpoConfig& config);

}  // namespace llmtrain
