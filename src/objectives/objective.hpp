#pragma once
// Training objectives: what a step minimises. An objective computes derivatives of the loss from token statistics, and
// the sums from which the loss and further metrics of a step follow. It never sees logits. To add one, add a file with
// its make_ function (docs/design/adding.md).

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/arena.hpp"
#include "core/batch.hpp"
#include "data/stream/data_stream.hpp"
#include "device/device.hpp"
#include "kernels/logprob.hpp"
#include "kernels/matmul.hpp"
#include "objectives/classify_config.hpp"
#include "objectives/distill_config.hpp"
#include "objectives/dpo_config.hpp"
#include "objectives/grpo_config.hpp"
#include "objectives/objective_config.hpp"
#include "objectives/ppo_config.hpp"
#include "objectives/reward_model_config.hpp"

namespace llmtrain {

/// Requirements of an objective besides the log-probabilities of the targets.
struct ObjectiveNeeds {
  /// The cotangents depend on the statistics, so that the head is run twice: to score, then to differentiate.
  bool statistics_first = false;
  bool entropy = false;        ///< entropies of the tokens' distributions, and their cotangents
  bool shows_entropy = false;  ///< entropies alone, for a metric
  bool value = false;          ///< values of a critic, and their cotangents
  bool uniform = false;        ///< TokenStatistics::uniform, and its cotangents
  bool lse_squared = false;    ///< cotangents of the squared lse
  bool mean_logits = false;    ///< TokenStatistics::mean_logit, for a metric
  bool rollout = false;        ///< Batch::rollout
  bool documents = false;      ///< Batch::documents; the host takes part in every pass
  int64_t outputs = 1;         ///< numbers of a row of TokenStatistics::logp and its cotangents
  bool reference = false;      ///< DocumentColumns::references
  /// Log-probabilities of all documents of a step before its passes (begin_step), at the price of a forward pass.
  bool step_statistics = false;
  bool teacher = false;     ///< statistics of the distributions of a teacher, whose loss the head differentiates
  bool mismatched = false;  ///< and of prompts with the completions of others
};

/// Log-probabilities of a step's documents, nats, in the order of the step.
struct StepDocuments {
  std::vector<double> logp, reference;                        ///< the second one is 0 without a reference
  std::vector<double> mismatched_logp, mismatched_reference;  ///< of mismatched documents; empty unless needed
};

/// A value of a step: factor * sum / count, where the sum runs over all ranks and is exact.
struct MetricSpec {
  std::string_view name;  ///< as in the ledger
  double factor = 1;
  std::string_view label = {};  ///< name on the console; empty: it is not shown there
  int divided_by = -1;          ///< number of the metric whose sum divides this one instead of the count
};

/// Value of metric number `index`; sums in the order of `specs`.
inline double metric_value(std::span<const MetricSpec> specs, std::span<const double> sums, size_t index,
                           int64_t count) {
  const int by = specs[index].divided_by;
  const double divisor = by >= 0 ? sums[static_cast<size_t>(by)] : static_cast<double>(count);
  return specs[index].factor * sums[index] / std::max(divisor, 1.0);
}

/// Scores of an evaluation by label.
struct LabelScores {
  std::vector<std::pair<std::string, double>> values;  ///< macro_f1, and precision, recall and f1 of each label
  std::vector<std::string> labels;                     ///< of the confusion matrix; none: there is no matrix
  std::vector<int64_t> confusion;  ///< [K, K] numbers of texts or tokens: a row for each true label, by predicted ones
};

class Objective {
 public:
  virtual ~Objective() = default;
  virtual ObjectiveNeeds needs() const { return {}; }
  /// Sees the documents of a step before its passes, if needs().step_statistics.
  virtual void begin_step(const StepDocuments& /*documents*/) {}
  /// Registers memory for batches of at most this many rows and segments.
  virtual void plan(Arena& /*arena*/, int64_t /*max_rows*/, int64_t /*max_segments*/) {}
  /// Log-probabilities that are compared with those of another pass must not depend on the other rows of a batch.
  ProductRole product_role() const { return needs().documents ? ProductRole::prefill : ProductRole::training; }
  /// Values of a step, in the order of their sums; the first is the loss.
  virtual std::span<const MetricSpec> metrics() const = 0;
  /// Divisor of a step's sums: the tokens, pairs or sequences that count in it.
  virtual int64_t count(const StepPlan& plan) const = 0;
  /// Fills the non-empty tensors of `out`, fp32 [N]: the derivatives times `scale`, fp32 [1], or 1 if it is empty.
  virtual void cotangents(const Batch& batch, const TokenStatistics& statistics, const TokenCotangents& out,
                          const Tensor& scale, Stream& stream) = 0;
  /// Adds a micro-batch to the sums: int64 [metrics().size(), ExactSum::integer_count].
  virtual void add_sums(const Batch& batch, const TokenStatistics& statistics, const Tensor& sums, Stream& stream) = 0;
  /// Exact counts of what add_sums() has seen, which an evaluation sets to 0 before and adds over ranks after; empty:
  /// there are none.
  virtual std::span<int64_t> counts() { return {}; }
  /// Scores that follow from the counts, and their names in this order.
  virtual LabelScores label_scores() const { return {}; }
  std::vector<std::string> score_names() const {
    std::vector<std::string> names;
    for (const auto& [name, value] : label_scores().values) names.push_back(name);
    return names;
  }
  /// Does both, for statistics that come first (needs().statistics_first).
  virtual void cotangents_and_sums(const Batch& batch, const TokenStatistics& statistics, const TokenCotangents& out,
                                   const Tensor& scale, const Tensor& sums, Stream& stream) {
    cotangents(batch, statistics, out, scale, stream);
    add_sums(batch, statistics, sums, stream);
  }
};

/// The sum over trained tokens of -log p(target), times the batch's loss weights, and further terms if there are any.
std::unique_ptr<Objective> make_cross_entropy(const ObjectiveConfig& config = {});

/// Kahneman-Tversky optimisation over documents with a label.
std::unique_ptr<Objective> make_kto(const DpoConfig& config);
/// The weighted sum of preference losses over pairs (dpo_config.hpp).
std::unique_ptr<Objective> make_dpo(const DpoConfig& config);
/// The loss of a model that scores, over pairs.
std::unique_ptr<Objective> make_reward(const RewardModelConfig& config);
/// The divergence from a teacher's distributions, and a share of the cross-entropy.
std::unique_ptr<Objective> make_distillation(const DistillConfig& config);
/// Losses of labels, as Transformers': cross-entropy of one label of several, the mean over labels of the binary
/// cross-entropy, or the squared error of a number. `labels`: names, none of a number.
std::unique_ptr<Objective> make_classification(LabelProblem problem, std::vector<std::string> labels);
/// The policy loss of GRPO and its relatives over completions of a rollout.
std::unique_ptr<Objective> make_grpo(const GrpoConfig& config);
/// The losses of policy and critic over completions of a rollout.
std::unique_ptr<Objective> make_ppo(const PpoConfig& config);

}  // namespace llmtrain
