#include "tasks/rollout_parts.hpp"

#include <fmt/format.h>

#include <utility>

#include "models/models.hpp"
#include "text/files/tokenizer_files.hpp"

namespace llmtrain {

namespace {

/// `tokens`: of the policy's softmax.
RolloutShape rollout_shape(const Config& config, int64_t tokens) {
  const bool ppo = config.run.task == Task::ppo;
  const RolloutConfig& sampling = config.rollout;
  const bool excludes = sampling.top_k > 0 || sampling.top_p < 1;
  return {.sequences = config.batch.global,
          .mini_batches = ppo ? config.ppo.mini_batches : config.grpo.mini_batches,
          .epochs = ppo ? config.ppo.epochs : config.grpo.epochs,
          .micro = config.batch.micro,
          .longest = config.batch.sequence_length,
          .max_new_tokens = sampling.max_new_tokens,
          .kept_words = excludes ? (tokens + 31) / 32 : 0,
          .seed = static_cast<uint64_t>(config.run.seed)};
}

/// Tokenizer of a folder where it is another one than the policy's; null if both are the same.
std::shared_ptr<const Tokenizer> tokenizer_unlike(const Tokenizer& own, const RoleFolder& folder) {
  if (folder.tokenizer_path.empty()) return nullptr;
  std::shared_ptr<const Tokenizer> tokenizer = load_tokenizer(folder.tokenizer_path);
  if (tokenizer->serialized() == own.serialized()) return nullptr;
  // Files of one tokenizer can differ, for example in the name of a BOS token.
  if (tokenizer->vocabulary_size() != own.vocabulary_size() || tokenizer->eos_id() != own.eos_id()) return tokenizer;
  constexpr std::string_view text =
      "The quick brown fox, 12.5 % of na\xc3\xaf"
      "ve \xe6\x9d\xb1\xe4\xba\xac\n\tends.";
  std::vector<int32_t> ours, theirs;
  try {
    own.encode(text, ours);
    tokenizer->encode(text, theirs);
  } catch (const EncodeError&) {
    return tokenizer;
  }
  return ours == theirs ? nullptr : tokenizer;
}

/// Tokenizer of the reward model where it is another one than the policy's; null if both are the same.
std::shared_ptr<const Tokenizer> other_tokenizer(const Config& config, const Tokenizer& own) {
  const RoleFolder& judge = config.source.reward.value();
  std::shared_ptr<const Tokenizer> tokenizer = tokenizer_unlike(own, judge);
  if (tokenizer == nullptr || (config.run.task == Task::ppo && config.ppo.same_text)) return tokenizer;
  const char* key = config.run.task == Task::ppo ? "ppo.reward_model" : "rewards.functions";
  throw UserError(
      ExitCode::deck,
      fmt::format("{}: {} has another tokenizer than the policy: its tokens mean something else. {}",
                  config.provenance.where(key), judge.model.path,
                  config.run.task == Task::ppo ? "With ppo.same_text = true it gets the same text in its own tokens"
                                               : "Train a reward model from the policy's folder"));
}

}  // namespace

BatchConfig prompt_batch(const Config& config) {
  BatchConfig batch = config.batch;
  batch.micro = batch.global = batch.gradient_accumulation_steps = 1;
  return batch;
}

std::unique_ptr<Rollouts> make_rollouts(const Config& config, const Dataset& data, int64_t tokens,
                                        const DataStream& prompts) {
  const bool ppo = config.run.task == Task::ppo;
  RolloutParts parts;
  parts.shape = rollout_shape(config, tokens);
  parts.sampling = config.rollout;
  parts.tokens = tokens;
  parts.tokenizer = data.tokenizer;
  parts.group_size = ppo ? 1 : config.grpo.group_size;
  parts.method = ppo ? make_ppo_method(config.ppo) : make_group_method(config.grpo);
  parts.references = needs_rollout_reference(config);
  parts.values = ppo;
  if (ppo && !config.ppo.reward_model.empty()) parts.rewards.push_back({.name = "reward_model"});
  const std::vector<RewardSpec> specs = config.rewards.specs();
  const std::vector<std::string> names = reward_names(config.rewards);
  for (size_t i = 0; i < specs.size(); ++i) {
    WeightedReward& reward = parts.rewards.emplace_back();
    reward.name = names[i];
    reward.weight = config.rewards.weight(i);
    if (specs[i].kind != RewardSpec::Kind::model) reward.spec = specs[i];
  }
  parts.reward_time_limit = config.rewards.time_limit;
  if (config.source.critic && tokenizer_unlike(*data.tokenizer, *config.source.critic) != nullptr) {
    throw UserError(ExitCode::deck,
                    fmt::format("{}: {} has another tokenizer than the policy, whose tokens the critic reads: start it "
                                "from a reward model of the policy's tokenizer",
                                config.provenance.where("ppo.value_model"), config.source.critic->model.path));
  }
  if (config.source.reward) parts.reward_tokenizer = other_tokenizer(config, *data.tokenizer);
  return std::make_unique<Rollouts>(std::move(parts), prompts);
}

bool needs_rollout_reference(const Config& config) {
  if (config.run.task == Task::ppo) return true;
  return config.run.task == Task::grpo && config.grpo.beta != 0;
}

CriticSpec critic_of(const Config& config) {
  const RoleFolder& folder = config.source.critic.value();
  return {decoder_shape(folder.model, folder.model.vocab_size), folder.model.path};
}

RoleSpec reward_role(const Config& config, const RankPosition& position, int64_t rows) {
  const RoleFolder& judge = config.source.reward.value();
  ParamStoreOptions store;
  store.compute = compute_dtype(config.precision);
  store.zero_stage = static_cast<int>(config.parallel.zero);
  store.rank = position.rank;
  store.size = position.size;
  store.node_size = position.node_size;
  DecoderShape shape = decoder_shape(judge.model, judge.model.vocab_size);
  quantize(shape, judge.quantization);
  RoleSpec role;
  role.role = Role::reward;
  role.shape = std::move(shape);
  role.store = store;
  role.passes = PassPlan{store.compute, rows, false};
  role.weights = {.folder = judge.model.path, .seed = static_cast<uint64_t>(config.run.seed)};
  return role;
}

}  // namespace llmtrain
