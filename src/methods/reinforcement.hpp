#pragma once
// The mapping of the deck to the rollouts of PPO and GRPO.

#include <memory>

#include "config/config.hpp"
#include "data/dataset.hpp"
#include "rollout/rollouts.hpp"
#include "tasks/tasks.hpp"

namespace llmtrain {

/// Batch of the stream of prompts: one a step.
BatchConfig prompt_batch(const Config& config);
/// `tokens`: of the policy's softmax; `prompts`: one a step.
std::unique_ptr<Rollouts> make_rollouts(const Config& config, const Dataset& data, int64_t tokens,
                                        const DataStream& prompts);
/// True if rollouts are scored by a reference.
bool needs_rollout_reference(const Config& config);
/// The critic of PPO.
CriticSpec critic_of(const Config& config);
/// The frozen reward model; `rows`: tokens of its largest batch.
RoleSpec reward_role(const Config& config, const RankPosition& position, int64_t rows);

}  // namespace llmtrain
