#pragma once
#include <memory>
#include <optional>
#include <span>

#include "core/arena.hpp"
#include "data/dataset.hpp"
#include "evaluation/evaluate.hpp"
#include "evaluation/evaluation_scores.hpp"
#include "metrics/run_log.hpp"
#include "parallel/job/runtime.hpp"
#include "roles/model_set.hpp"

namespace llmtrain {

/// Result of scoring a text.
struct EvaluationReport {
  double loss = 0;      ///< mean negative log-likelihood, nats per token
  int64_t tokens = 0;   ///< number of scored tokens; 0: there are no data but those of evaluation.tasks
  int64_t correct = 0;  ///< those that the model ranked first
  int64_t bytes = 0;    ///< bytes of the text of scored tokens; 0 = unknown (token ids without a tokenizer)
  std::vector<NamedValue> metrics = {};  ///< of a reward model, whose loss is that of pairs, counted by `tokens`
  std::vector<NamedValue> scores = {};   ///< of evaluation.tasks and evaluation.metrics

  double perplexity() const;
  double token_accuracy() const;
  double bits_per_byte() const;  ///< 0 = unknown
};

/// Bytes of the text of a batch's scored targets. Special tokens have none.
int64_t scored_bytes(const Tokenizer& tokenizer, const HostBatch& batch);

/// Parts of an evaluation.
struct EvaluationParts {
  RoleSpec policy;
  std::optional<DataStream> data = {};         ///< pairs for a model that scores; none: choices alone are scored
  int64_t steps = 0;                           ///< those of `data` that are scored
  std::shared_ptr<const Tokenizer> tokenizer;  ///< may be null
  EvaluationScores scores = {};
};

/// run.task = evaluate. It is planned for any number of ranks, then run once.
class EvaluationTask {
 public:
  EvaluationTask(EvaluationParts parts, int ranks);

  const Arena& plan() const { return arena_; }
  int64_t parameter_count() const { return models_.at(Role::policy).params().units().parameters(); }
  const std::optional<DataStream>& data() const { return parts_.data; }
  int64_t steps() const { return parts_.steps; }
  EvaluationScores& scores() { return parts_.scores; }
  std::span<const MetricSpec> metrics() const { return objective_->metrics(); }

  /// Allocates, reads the weights and scores. Collective.
  EvaluationReport run(Runtime& runtime, const Mesh& mesh, RunLog& log);

 private:
  void score_data(EvaluationReport& report, Context& ctx, const Mesh& mesh);

  EvaluationParts parts_;
  std::unique_ptr<Objective> objective_;
  ModelSet models_;
  Arena arena_;
  BatchBuffers batch_;
  TokenStatistics statistics_;
  Tensor sums_;  ///< of the objective
};

}  // namespace llmtrain
