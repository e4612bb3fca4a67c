#include "tasks/rollout_parts.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <utility>

#include "core/kept_tokens.hpp"
#include "data/files/data_sources.hpp"
#include "data/files/input_kind.hpp"
#include "models/models.hpp"
#include "tasks/training_parts.hpp"
#include "text/load_tokenizer.hpp"

namespace llmtrain {

namespace {

/// `tokens`: of the policy's softmax.
RolloutShape rollout_shape(const Config& config, int64_t tokens) {
  const bool ppo = config.run.task == Task::ppo;
  const RolloutConfig& sampling = config.rollout;
  const bool excludes = sampling.top_k > 0 || sampling.top_p < 1;
  const int64_t words = excludes ? (tokens + 31) / 32 : 0;
  return {.sequences = config.batch.global,
          .mini_batches = ppo ? config.ppo.mini_batches : config.grpo.mini_batches,
          .epochs = ppo ? config.ppo.epochs : config.grpo.epochs,
          .micro = config.batch.micro,
          .max_length = config.batch.sequence_length,
          .max_new_tokens = sampling.max_new_tokens,
          .kept_words = words,
          .kept_values = excludes ? max_kept_values(words, sampling.top_k > 0 ? sampling.top_k : tokens) : 0,
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
  const RoleFolder& reward = config.source.reward.value();
  std::shared_ptr<const Tokenizer> tokenizer = tokenizer_unlike(own, reward);
  if (tokenizer == nullptr || (config.run.task == Task::ppo && config.ppo.same_text)) return tokenizer;
  const char* key = config.run.task == Task::ppo ? "ppo.reward_model" : "rewards.functions";
  throw UserError(
      ExitCode::deck,
      fmt::format("{}: {} has another tokenizer than the policy: its tokens mean something else. {}",
                  config.provenance.where(key), reward.model.path,
                  config.run.task == Task::ppo ? "With ppo.same_text = true it gets the same text in its own tokens"
                                               : "Train a reward model from the policy's folder"));
}

}  // namespace

namespace {

/// Place of a prompt's row in the deck's files, if one of them has the stored name.
std::string place_of_row(const DataConfig& data, const StoredRow& row) {
  if (row.offset < 0) return "of an unknown row";
  const std::string otherwise = fmt::format("{}, byte {}", row.name, row.offset);
  try {
    std::vector<std::string> patterns;
    for (const WeightedPattern& entry : split_weights(data.train)) patterns.push_back(entry.pattern);
    std::vector<InputFile> files = find_input_files(patterns, data.text_format());
    std::erase_if(files, [&](const InputFile& file) {
      return !is_encoded(file.kind) || std::filesystem::path(file.path).filename() != row.name;
    });
    if (files.size() != 1) return otherwise;
    return fmt::format("{}:{}", files.front().path, line_of_byte(open_content(files.front()), row.offset));
  } catch (const UserError&) {  // the files are gone
    return otherwise;
  }
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
  parts.place_of = [data = config.data](const StoredRow& row) { return place_of_row(data, row); };
  parts.tokenizer = parts.rewards.tokenizer = data.tokenizer;
  parts.group_size = ppo ? 1 : config.grpo.group_size;
  parts.method = ppo ? make_ppo_method(config.ppo) : make_group_method(config.grpo);
  parts.references = needs_rollout_reference(config);
  parts.values = ppo;
  if (ppo && !config.ppo.reward_model.empty()) parts.rewards.terms.push_back({.name = "reward_model"});
  const std::vector<RewardSpec> specs = config.rewards.specs();
  const std::vector<std::string> names = reward_names(config.rewards);
  for (size_t i = 0; i < specs.size(); ++i) {
    WeightedReward& reward = parts.rewards.terms.emplace_back();
    reward.name = names[i];
    reward.weight = config.rewards.weight(i);
    if (specs[i].kind != RewardSpec::Kind::model) reward.spec = specs[i];
  }
  parts.rewards.time_limit = config.rewards.time_limit;
  if (config.source.critic && tokenizer_unlike(*data.tokenizer, *config.source.critic) != nullptr) {
    throw UserError(ExitCode::deck,
                    fmt::format("{}: {} has another tokenizer than the policy, whose tokens the critic reads: start it "
                                "from a reward model of the policy's tokenizer",
                                config.provenance.where("ppo.value_model"), config.source.critic->model.path));
  }
  if (config.source.reward) parts.rewards.model_tokenizer = other_tokenizer(config, *data.tokenizer);
  return std::make_unique<Rollouts>(std::move(parts), prompts);
}

bool needs_rollout_reference(const Config& config) {
  if (config.run.task == Task::ppo) return true;
  return config.run.task == Task::grpo && config.grpo.beta != 0;
}

CriticSpec critic_of(const Config& config) {
  if (config.ppo.shares_trunk()) return {};
  const RoleFolder& folder = config.source.critic.value();
  return {decoder_shape(folder.model, folder.model.vocab_size), folder.model.path};
}

RoleSpec reward_role(const Config& config, const RankPosition& position, int64_t rows) {
  const RoleFolder& reward = config.source.reward.value();
  DecoderShape shape = decoder_shape(reward.model, reward.model.vocab_size);
  quantize(shape, reward.quantization);
  return frozen_role(Role::reward, config, position, rows, std::move(shape), reward.model.path);
}

}  // namespace llmtrain
