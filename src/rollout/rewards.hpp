#pragma once
// Rewards of a rollout: the weighted sum of reward functions and a reward model.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "data/stream/batch_source.hpp"
#include "rewards/reward_function.hpp"
#include "rollout/advantages.hpp"
#include "rollout/scoring.hpp"
#include "text/tokenizer.hpp"

namespace llmtrain {

/// A term of the reward: a function or the reward model, and its weight.
struct WeightedReward {
  std::string name;  ///< in metrics: rewards/NAME/mean
  double weight = 1;
  std::optional<RewardSpec> spec = {};            ///< not set: the score of the reward model
  std::unique_ptr<RewardFunction> function = {};  ///< made with the first rollout: plans do not start programs
};

struct RewardParts {
  std::vector<WeightedReward> terms;
  Duration time_limit{60};  ///< of a program's batch
  std::shared_ptr<const Tokenizer> tokenizer;
  /// Tokenizer of the reward model if it has another one: it gets the same text in its own tokens.
  std::shared_ptr<const Tokenizer> model_tokenizer = {};
};

class RolloutRewards {
 public:
  RolloutRewards(RewardParts parts, DataStream prompts) : parts_(std::move(parts)), prompts_(std::move(prompts)) {}

  std::vector<SourceMetric> metrics() const;
  /// Sets the sequences' rewards (NaN: none). Returns the values of metrics(), or nothing if interrupted. Collective.
  std::optional<std::vector<double>> score(const SamplingContext& run, RolloutBatches& batches, RolloutScorer& scorer);

 private:
  using Values = std::optional<std::vector<double>>;

  std::vector<int32_t> model_ids(const RolloutSequence& sequence, int64_t max_length) const;
  Values score_by_model(const SamplingContext& run, RolloutBatches& batches, RolloutScorer& scorer);
  Values score_by_function(const SamplingContext& run, const RolloutBatches& batches, WeightedReward& term);
  RewardRow row_of(const SamplingContext& run, const RolloutSequence& sequence, const std::string& columns) const;

  RewardParts parts_;
  DataStream prompts_;
};

}  // namespace llmtrain
