#pragma once
// Rollouts of PPO and GRPO: completions that the policy samples for prompts, their rewards, and what their updates
// learn from. The tokens of an iteration, and all numbers of them, are a function of the parameters, the prompts and
// the iteration: they do not depend on ranks, threads, the ZeRO stage or the texts beside.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/profile.hpp"
#include "generate/generator.hpp"
#include "models/model.hpp"
#include "roles/model_set.hpp"
#include "rollout/advantages.hpp"
#include "rollout/batches.hpp"
#include "rollout/rewards.hpp"
#include "rollout/rollout_config.hpp"
#include "rollout/scoring.hpp"
#include "text/tokenizer.hpp"

namespace llmtrain {

struct RolloutParts {
  RolloutShape shape;
  RolloutConfig sampling;
  std::shared_ptr<const Tokenizer> tokenizer;
  int64_t group_size = 1;  ///< sequences of a prompt, which follow one another
  std::unique_ptr<AdvantageEstimator> advantages;
  RewardParts rewards;
  int64_t tokens = 0;                                     ///< of the policy's softmax
  bool references = false;                                ///< true if log-probabilities under the reference are needed
  bool values = false;                                    ///< true if the policy's model has a critic
  std::function<std::string(const StoredRow&)> place_of;  ///< "file:line" of a prompt's row
};

class Rollouts : public BatchSource {
 public:
  /// `prompts`: a step of them has one prompt. Iterations take them in their order, over all epochs.
  Rollouts(RolloutParts parts, DataStream prompts);

  int64_t max_rows() const override { return batches_.max_rows(); }
  int64_t max_segments() const override { return batches_.max_segments(); }
  /// Updates until each prompt was used once.
  int64_t steps_per_epoch() const override {
    const int64_t each = prompts_of_iteration();
    return (prompts_.samples() + each - 1) / each * parts_.shape.updates();
  }
  using BatchSource::plan;
  void plan(int64_t step, StepPlan& out) const override { batches_.plan(step, out); }
  void load(const MicroBatchPlan& plan, HostBatch& out) const override { batches_.load(plan, out); }

  void plan_memory(ModelSet& models, Arena& arena, DType compute, int ranks) override;
  int64_t host_bytes() const override;
  int64_t kept_words() const override { return parts_.shape.kept_words; }
  float temperature() const override { return static_cast<float>(parts_.sampling.temperature); }
  int64_t prepared_steps() const override { return parts_.shape.updates(); }
  bool is_prepared(int64_t step) const override { return made_ == batches_.iteration_of(step); }
  /// Makes the rollout that the step learns from.
  Prepared prepare(const SamplingContext& run, int64_t step) override;
  std::vector<SourceMetric> metrics() const override;
  std::vector<double> metric_values() const override { return metric_values_; }
  std::vector<int64_t> rows_of(std::span<const int64_t> samples) const override;
  std::vector<std::string> places_of(std::span<const int64_t> rows) const override;
  bool has_state() const override { return true; }
  std::string save(int64_t step) const override;
  void restore(const std::string& bytes, int64_t step, const std::string& source) override;
  void reset() override;

 private:
  int64_t prompts_of_iteration() const { return parts_.shape.of_iteration() / parts_.group_size; }
  bool has_kept(const RolloutSequence& sequence) const;
  /// Throws Error for a sequence that this deck could not have made.
  void check(const RolloutSequence& sequence) const;
  /// Sets `sequences` unless it was interrupted, or logits are not finite.
  Prepared sample(const SamplingContext& run, int64_t iteration, std::vector<RolloutSequence>& sequences);
  GenerationRequest request(const SamplingContext& run, int64_t iteration, std::span<const int64_t> prompts);
  /// Scores what was sampled. Returns false if it was interrupted.
  bool score(const SamplingContext& run, ProfileSpan& phase);
  /// Sets a column by a number for each completion token.
  bool score_tokens(const SamplingContext& run, const std::function<void(const Batch*, const Tensor&)>& compute,
                    std::vector<float> RolloutSequence::*column);
  bool score_by_reference(const SamplingContext& run);
  bool score_by_critic(const SamplingContext& run);
  Context scoring_context(const SamplingContext& run, RoleModel& model) const;
  std::vector<double> lengths() const;

  RolloutParts parts_;
  DataStream prompts_;
  RolloutBatches batches_;
  std::vector<double> first_state_;  ///< of the method
  std::optional<Generator> generator_;
  RolloutScorer scorer_;
  RolloutRewards rewards_;
  int64_t made_ = -1;  ///< iteration of the sequences once they are complete
  std::vector<double> metric_values_;
};

}  // namespace llmtrain
