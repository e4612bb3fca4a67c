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

#include "generate/generator.hpp"
#include "generate/rollout_config.hpp"
#include "models/model.hpp"
#include "parallel/job/runtime.hpp"
#include "rewards/reward_function.hpp"
#include "roles/model_set.hpp"
#include "text/tokenizer.hpp"
#include "train/rollout_batches.hpp"
#include "train/rollout_method.hpp"

namespace llmtrain {

/// A term of the reward: a function or the reward model, and its weight.
struct WeightedReward {
  std::string name;  ///< in metrics: rewards/NAME/mean
  double weight = 1;
  std::optional<RewardSpec> spec = {};            ///< not set: the score of the reward model
  std::unique_ptr<RewardFunction> function = {};  ///< made with the first rollout: plans do not start programs
};

struct RolloutParts {
  RolloutShape shape;
  RolloutConfig sampling;
  std::shared_ptr<const Tokenizer> tokenizer;
  int64_t group_size = 1;  ///< sequences of a prompt, which follow one another
  std::unique_ptr<RolloutMethod> method;
  std::vector<WeightedReward> rewards;
  Duration reward_time_limit{60};  ///< of a program's batch
  /// Tokenizer of the reward model if it has another one: it gets the same text in its own tokens.
  std::shared_ptr<const Tokenizer> reward_tokenizer = {};
  int64_t tokens = 0;       ///< of the policy's softmax
  bool references = false;  ///< true if log-probabilities under the reference are needed
  bool values = false;      ///< true if the policy's model has a critic
};

/// Objects that a rollout works with.
struct RolloutContext {
  ModelSet& models;
  Arena& arena;
  Runtime& runtime;
  std::function<void(const std::string&)> print;  ///< for lines of progress
  /// Collective callback: returns true to stop.
  std::function<bool()> interrupted;
};

class Rollouts {
 public:
  /// `prompts`: a step of them has one prompt. Iterations take them in their order, over all epochs.
  Rollouts(RolloutParts parts, DataStream prompts);

  /// Registers the memory of sampling and scoring.
  void plan(ModelSet& models, Arena& arena, DType compute, int ranks);
  /// Sets the tokens that end a completion.
  void set_stop_ids(std::vector<int32_t> ids) { stop_ids_ = std::move(ids); }

  const RolloutBatches& batches() const { return batches_; }
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
  /// Makes the rollout of this step. Returns false if it was interrupted; it is then made again. Collective.
  bool make(const RolloutContext& run, int64_t step);
  std::vector<RolloutMetric> metrics() const;
  const std::vector<double>& metric_values() const { return metric_values_; }

  /// State for a checkpoint before the step; restore() throws UserError(bad_content) beginning with `source`.
  std::string save(int64_t step) const;
  void restore(const std::string& bytes, int64_t step, const std::string& source);
  /// Forgets the rollout, and what iterations have handed on.
  void reset();

 private:
  /// Throws Error for a sequence that this deck could not have made.
  void check(const RolloutSequence& sequence) const;
  /// Sequences [begin, end) that this rank samples.
  struct Part {
    int64_t begin, end;
  };
  Part part_of(const Communicator& communicator) const;
  std::optional<std::vector<RolloutSequence>> sample(const RolloutContext& run, int64_t iteration);
  GenerationRequest request(const RolloutContext& run, int64_t iteration, Part part, std::span<const int64_t> prompts);
  /// Runs `score` over all sequences, those of a forward pass by one rank; a null plan is an idle pass. Each returns
  /// the numbers of its sequences, which `keep` receives on every rank.
  using Score = std::function<std::vector<std::vector<float>>(const MicroBatchPlan* plan)>;
  using Keep = std::function<void(RolloutSequence& sequence, std::vector<float> values)>;
  void score_all(const RolloutContext& run, const Score& score, const Keep& keep);
  /// Sets a column by the model's number for each completion token: its log-probability, or a critic's value.
  void score_tokens(const RolloutContext& run, Model& model, Context ctx, std::vector<float> RolloutSequence::*column);
  std::vector<int32_t> judged_ids(const RolloutSequence& sequence) const;
  std::vector<double> model_rewards(const RolloutContext& run);
  std::vector<double> function_rewards(const RolloutContext& run, WeightedReward& reward);
  /// Sets the sequences' rewards, and returns the mean of each function.
  std::vector<double> reward(const RolloutContext& run);
  std::vector<double> lengths() const;

  RolloutParts parts_;
  DataStream prompts_;
  RolloutBatches batches_;
  std::vector<double> first_state_;  ///< of the method
  std::vector<int32_t> stop_ids_;
  std::optional<Generator> generator_;
  BatchBuffers batch_;
  TokenStatistics statistics_;
  HostBatch host_;
  int64_t made_ = -1;  ///< iteration of the sequences once they are complete
  std::vector<double> metric_values_;
};

}  // namespace llmtrain
