#include "rollout/rewards.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/activity.hpp"
#include "core/error.hpp"
#include "parallel/job/cancellable_work.hpp"
#include "rollout/reward_sums.hpp"

namespace llmtrain {

namespace {

constexpr double largest_reward = 1e30;

/// Throws UserError(diverged) for a score of the reward model that is not finite, and for numbers that are too large. A
/// function may leave a completion without a reward.
void check_rewards(const WeightedReward& term, std::span<const double> rewards) {
  for (size_t s = 0; s < rewards.size(); ++s) {
    const double reward = term.weight * rewards[s];
    if (std::abs(reward) <= largest_reward || (term.spec && std::isnan(rewards[s]))) continue;
    throw UserError(
        ExitCode::diverged,
        fmt::format("the reward of completion {} is {}: rewards and their weights must give numbers up to {}", s + 1,
                    reward, largest_reward));
  }
}

/// A program may leave completions without a reward.
bool may_leave_out(const WeightedReward& term) { return term.spec && term.spec->kind == RewardSpec::Kind::command; }

}  // namespace

std::vector<SourceMetric> RolloutRewards::metrics() const {
  std::vector<SourceMetric> all = {{"reward", "reward"}, {"reward_std"}};
  for (const WeightedReward& term : parts_.terms) {
    all.push_back({"rewards/" + term.name + "/mean"});
    all.push_back({"rewards/" + term.name + "/std"});
  }
  if (std::ranges::any_of(parts_.terms, may_leave_out)) all.push_back({unscorable_metric});
  return all;
}

std::optional<std::vector<double>> RolloutRewards::score(const SamplingContext& run, RolloutBatches& batches,
                                                         RolloutScorer& scorer) {
  std::vector<RolloutSequence>& sequences = batches.sequences();
  std::vector<double> sums(sequences.size(), std::numeric_limits<double>::quiet_NaN()), numbers(2);
  for (WeightedReward& term : parts_.terms) {
    const Values values = term.spec ? score_by_function(run, batches, term) : score_by_model(run, batches, scorer);
    if (!values) return std::nullopt;
    check_rewards(term, *values);
    add_rewards(sums, *values, term.weight);
    const RewardMoments moments = reward_moments(*values);
    numbers.insert(numbers.end(), {moments.mean, moments.deviation});
  }
  for (size_t s = 0; s < sums.size(); ++s) sequences[s].reward = sums[s];
  const RewardMoments moments = reward_moments(sums);
  numbers[0] = moments.mean;
  numbers[1] = moments.deviation;
  const int64_t without = std::ssize(sums) - moments.count;
  if (std::ranges::any_of(parts_.terms, may_leave_out)) numbers.push_back(static_cast<double>(without));
  if (without > 0) {
    run.warn(
        fmt::format("rewards.functions: {} of {} completions have no reward and are left out", without, sums.size()));
  }
  return numbers;
}

// The reward model

/// Tokens that the reward model reads. A text that is too long in its tokens loses its beginning.
std::vector<int32_t> RolloutRewards::model_ids(const RolloutSequence& sequence, int64_t max_length) const {
  if (parts_.model_tokenizer == nullptr) return sequence.ids;
  std::vector<int32_t> ids;
  parts_.model_tokenizer->encode(parts_.tokenizer->decode(sequence.ids), ids);
  const int64_t beyond = std::ssize(ids) - max_length;
  if (beyond > 0) ids.erase(ids.begin(), ids.begin() + beyond);
  if (ids.empty()) ids.push_back(0);
  return ids;
}

RolloutRewards::Values RolloutRewards::score_by_model(const SamplingContext& run, RolloutBatches& batches,
                                                      RolloutScorer& scorer) {
  RoleModel& role = run.models.at(Role::reward);
  Context ctx{role.params(), run.arena, run.runtime.stream()};
  ctx.role = ProductRole::prefill;
  ctx.rows = &run.rows;
  const int64_t max_length = batches.shape().max_length;
  // All ranks encode all texts: what a tokenizer refuses is refused by all of them.
  std::vector<std::vector<int32_t>> ids;
  for (const RolloutSequence& sequence : batches.sequences()) ids.push_back(model_ids(sequence, max_length));
  ScoringPass pass;
  pass.load = [&](const MicroBatchPlan& plan, HostBatch& out) {
    std::vector<std::vector<int32_t>> texts;
    for (const int64_t index : plan.samples) {
      texts.push_back(ids[static_cast<size_t>(index)]);
    }
    load_scored(texts, max_length, out);
  };
  pass.compute = [&](const Batch* batch, const Tensor& numbers) {
    llmtrain::score(role.model(), ctx, batch, {numbers, {}, {}, {}});
  };
  pass.count = [](const RolloutSequence&) { return int64_t{1}; };
  std::vector<double> rewards;
  std::vector<RolloutSequence>& sequences = batches.sequences();
  rewards.resize(sequences.size());
  pass.keep = [&](RolloutSequence& sequence, const std::vector<float>& values) {
    rewards[static_cast<size_t>(&sequence - sequences.data())] = double{values.at(0)};
  };
  if (!scorer.run(run, batches, pass)) return std::nullopt;
  return rewards;
}

// Functions

RewardRow RolloutRewards::row_of(const SamplingContext& run, const RolloutSequence& sequence,
                                 const std::string& columns) const {
  const auto prompt = sequence.ids.begin() + sequence.prompt_length;
  const bool eos = std::ranges::find(run.stop_ids, sequence.ids.back()) != run.stop_ids.end();
  RewardRow row;
  row.prompt = parts_.tokenizer->decode({sequence.ids.begin(), prompt});
  row.completion = parts_.tokenizer->decode({prompt, sequence.ids.end() - (eos ? 1 : 0)});
  row.completion_ids = sequence.completion();
  row.ended = sequence.ended;
  row.columns = columns;
  return row;
}

/// Each rank scores a share of the sequences. If they are interrupted, programs are ended, and started again later.
RolloutRewards::Values RolloutRewards::score_by_function(const SamplingContext& run, const RolloutBatches& batches,
                                                         WeightedReward& term) {
  Communicator& communicator = run.runtime.communicator();
  const RolloutBatches::Part part = batches.part_of(communicator);
  std::vector<double> mine(static_cast<size_t>(part.end - part.begin));
  try {
    run_cancellable(communicator, "while rewards were computed", [&](const Pause& pause) {
      std::vector<std::string> columns;
      columns.reserve(mine.size());
      std::vector<RewardRow> rows;
      for (int64_t s = part.begin; s < part.end; ++s) {
        const RolloutSequence& sequence = batches.sequences()[static_cast<size_t>(s)];
        rows.push_back(row_of(run, sequence, columns.emplace_back(prompts_.row(sequence.prompt).columns)));
      }
      if (term.function == nullptr) {
        term.function = make_reward_function(term.spec.value(), parts_.time_limit);
      }
      term.function->score(rows, mine, pause);
    });
  } catch (const UserError& error) {  // the same on all ranks
    if (error.code() != ExitCode::stopped) throw;
    term.function.reset();
    run.interrupted();  // it records the reason
    return std::nullopt;
  }
  std::vector<int64_t> unscored = {term.function->take_unscored()};
  Message message;
  message.put(mine);
  message.put(unscored);
  std::vector<double> all;
  int64_t count = 0;
  for (const std::string& bytes : communicator.gather_all(message.bytes())) {
    Message received(bytes);
    received.take(all);
    unscored.clear();
    received.take(unscored);
    count += unscored.at(0);
  }
  if (count > 0) {
    run.warn(fmt::format("rewards.functions: {} takes too many steps on {} of {} completions, whose reward is 0",
                         term.name, count, all.size()));
  }
  return all;
}

}  // namespace llmtrain
