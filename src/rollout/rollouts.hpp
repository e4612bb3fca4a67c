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
#include "rollout/batches.hpp"
#include "rollout/method.hpp"
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
  std::unique_ptr<RolloutMethod> method;
  RewardParts rewards;
  int64_t tokens = 0;                                     ///< of the policy's softmax
  bool references = false;                                ///< true if log-probabilities under the reference are needed
  bool values = false;                                    ///< true if the policy's model has a critic
  std::function<std::string(const StoredRow&)> place_of;  ///< "file:line" of a prompt's row
};

class Rollouts {
 public:
  /// `prompts`: a step of them has one prompt. Iterations take them in their order, over all epochs.
  Rollouts(RolloutParts parts, DataStream prompts);

  /// Registers the memory of sampling and scoring.
  void plan(ModelSet& models, Arena& arena, DType compute, int ranks);
  /// Sets the tokens that end a completion.
  void set_stop_ids(const std::vector<int32_t>& ids) {
    stop_ids_ = ids;
    rewards_.set_stop_ids(ids);
  }

  const RolloutBatches& batches() const { return batches_; }
  /// Host memory of a rollout beside the plan, bytes.
  int64_t host_bytes() const;
  int64_t prompts_of_iteration() const { return parts_.shape.of_iteration() / parts_.group_size; }
  /// Updates until each prompt was used once.
  int64_t steps_per_epoch() const {
    const int64_t each = prompts_of_iteration();
    return (prompts_.samples() + each - 1) / each * parts_.shape.updates();
  }
  /// Divisor of logits in sampling, and so in updates.
  float temperature() const { return static_cast<float>(parts_.sampling.temperature); }
  /// True if the rollout that this step of the data learns from is there.
  bool has(int64_t step) const { return made_ == batches_.iteration_of(step); }
  /// Makes the rollout of this step. Without `made` there is none, and it may be made again. Collective.
  enum class Outcome : uint8_t { made, interrupted, not_finite };
  Outcome make(const RolloutContext& run, int64_t step);
  /// Numbers of the prompts of these sequences, ascending.
  std::vector<int64_t> prompts_of(std::span<const int64_t> sequences) const;
  /// Places of the first prompts, for messages.
  std::vector<std::string> places_of(std::span<const int64_t> prompts) const;
  std::vector<RolloutMetric> metrics() const;
  const std::vector<double>& metric_values() const { return metric_values_; }

  /// State for a checkpoint before the step; restore() throws UserError(bad_content) beginning with `source`.
  std::string save(int64_t step) const;
  void restore(const std::string& bytes, int64_t step, const std::string& source);
  /// Forgets the rollout, and what iterations have handed on.
  void reset();

 private:
  bool has_kept(const RolloutSequence& sequence) const;
  /// Throws Error for a sequence that this deck could not have made.
  void check(const RolloutSequence& sequence) const;
  /// Sets `sequences` unless it was interrupted, or logits are not finite.
  Outcome sample(const RolloutContext& run, int64_t iteration, std::vector<RolloutSequence>& sequences);
  GenerationRequest request(const RolloutContext& run, int64_t iteration, RolloutBatches::Part part,
                            std::span<const int64_t> prompts);
  /// Scores what was sampled. Returns false if it was interrupted.
  bool score(const RolloutContext& run, ProfileSpan& phase);
  /// Sets a column by a number for each completion token.
  bool score_tokens(const RolloutContext& run, const std::function<void(const Batch*, const Tensor&)>& compute,
                    std::vector<float> RolloutSequence::*column);
  bool score_by_reference(const RolloutContext& run);
  bool score_by_critic(const RolloutContext& run);
  Context scoring_context(const RolloutContext& run, RoleModel& model) const;
  std::vector<double> lengths() const;

  RolloutParts parts_;
  DataStream prompts_;
  RolloutBatches batches_;
  std::vector<double> first_state_;  ///< of the method
  std::vector<int32_t> stop_ids_;
  std::optional<Generator> generator_;
  RolloutScorer scorer_;
  RolloutRewards rewards_;
  int64_t made_ = -1;  ///< iteration of the sequences once they are complete
  std::vector<double> metric_values_;
};

}  // namespace llmtrain
