#include "methods/reinforcement.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <optional>
#include <utility>

#include "config/config.hpp"
#include "core/activity.hpp"
#include "core/error.hpp"
#include "core/kept_tokens.hpp"
#include "data/files/data_sources.hpp"
#include "data/files/document_reader.hpp"
#include "data/files/input_kind.hpp"
#include "data/files/jsonl.hpp"
#include "data/formats/row_format.hpp"
#include "methods/roles.hpp"
#include "models/models.hpp"
#include "rewards/reward_function.hpp"
#include "text/load_tokenizer.hpp"

namespace llmtrain {

namespace {

// Checks of reward functions against the prompts of a deck, before a run computes anything.

/// Prompts of a row and its other columns; the place is "file:line".
struct PromptRow {
  std::string place, prompt, columns;
};

/// Calls `visit` for each row until it returns false. Returns false then.
bool visit_rows(const InputFile& file, const std::function<bool(const PromptRow&)>& visit) {
  if (file.kind == InputKind::tokens) {
    const std::shared_ptr<const TokenFile> tokens = open_token_file(file.path);
    for (int64_t d = 0; d < tokens->info().documents; ++d) {
      report_progress();
      if (!visit({fmt::format("{}, prompt {}", file.path, d + 1), "", StoredRow::parse(tokens->row_text(d)).columns}))
        return false;
    }
    return true;
  }
  const RowReader rows("prompt", file.format.columns, true);
  DocumentReader reader(file, max_row_limit);
  for (DocumentSegment segment; reader.next(segment);) {
    if (is_blank(segment.text)) continue;
    report_progress();
    const std::string place = fmt::format("{}:{}", file.path, segment.line);
    PromptRow row{place, "", ""};
    try {
      const RowDocuments documents = rows.read_documents(segment.text);
      row.columns = documents.columns.value_or("{}");
      row.prompt = texts_of(documents);
    } catch (const UserError& error) {
      throw UserError(error.code(), place + ": " + error.what());
    }
    if (!visit(row)) return false;
  }
  return true;
}

void visit_prompts(const Config& config, const std::function<bool(const PromptRow&)>& visit) {
  std::vector<std::string> patterns;
  for (const WeightedPattern& entry : split_weights(config.data.train)) patterns.push_back(entry.pattern);
  const std::vector<InputFile> files = find_input_files(patterns, sample_rules(config).text_format());
  for (const InputFile& file : files) {
    if (!visit_rows(file, visit)) return;
  }
}

/// Checks that every row of data.train has the columns that rewards.functions name. Throws UserError(bad_content)
/// "file:line: what". Reads all rows.
void check_columns_of_rows(const Config& config) {
  std::vector<RewardSpec> specs = config.rewards.specs();
  std::erase_if(specs, [](const RewardSpec& spec) { return spec.column().empty(); });
  if (specs.empty()) return;
  visit_prompts(config, [&](const PromptRow& row) {
    for (const RewardSpec& spec : specs) {
      try {
        check_reward_columns(spec, row.columns);
      } catch (const UserError& error) {
        throw UserError(error.code(), row.place + ": " + error.what());
      }
    }
    return true;
  });
}

/// Starts the programs of rewards.functions, and lets each score the first row with an empty completion. Throws
/// UserError.
void try_reward_programs(const Config& config) {
  std::vector<RewardSpec> specs = config.rewards.specs();
  std::erase_if(specs, [](const RewardSpec& spec) { return spec.kind != RewardSpec::Kind::command; });
  if (specs.empty()) return;
  visit_prompts(config, [&](const PromptRow& first) {
    RewardRow row;
    row.prompt = first.prompt;
    row.columns = first.columns;
    double reward = 0;
    for (const RewardSpec& spec : specs) {
      make_reward_function(spec, config.rewards.time_limit)->score({&row, 1}, {&reward, 1}, [] {});
    }
    return false;
  });
}

/// Place of a prompt's row in the deck's files, if one of them has the stored name.
std::string place_of_row(const SampleRules& data, const StoredRow& row) {
  if (row.offset < 0) return "of an unknown row";
  std::string otherwise = fmt::format("{}, byte {}", row.name, row.offset);
  try {
    std::vector<std::string> patterns;
    for (const WeightedPattern& entry : split_weights(data.train)) patterns.push_back(entry.pattern);
    std::vector<InputFile> files = find_input_files(patterns, data.text_format());
    std::erase_if(files, [&](const InputFile& file) {
      return !is_encoded(file.kind) || std::filesystem::path(file.path).filename() != row.name;
    });
    if (files.size() != 1) return otherwise;
    if (files.front().is_packed()) return otherwise;
    return place_of_line(files.front().path, line_of_byte(open_content(files.front()), row.offset));
  } catch (const UserError&) {  // the files are gone
    return otherwise;
  }
}

}  // namespace

std::shared_ptr<const Tokenizer> different_tokenizer(const Tokenizer& own, const RoleFolder& folder) {
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

SampleRules ReinforcementMethod::sample_rules(const Config& config) const {
  SampleRules rules = Method::sample_rules(config);
  rules.completion_tokens = config.rollout.max_new_tokens;
  return rules;
}

void ReinforcementMethod::check(DeckLoader& deck, Config& config) const {
  config.rollout.resolve(deck, config.batch.sequence_length);
  check_windows(deck, config.model, config.rollout.cache, "rollout.cache");
  config.rewards.resolve(deck);
  deck.check(config.data.max_tokens_per_batch == 0, {"data.max_tokens_per_batch"},
             "has no effect on completions, whose length is not known in advance: use batch.micro");
  if (!deck.sound({"rewards.functions"})) return;
  const std::vector<RewardSpec> specs = config.rewards.specs();
  const auto models = std::ranges::count(specs, RewardSpec::Kind::model, &RewardSpec::kind);
  deck.check(models + (reward_folder(config).empty() ? 0 : 1) <= 1, {"rewards.functions"},
             "has a second reward model: a run can have one");
}

std::vector<RoleFolderKey> ReinforcementMethod::role_folders(const Config& config) const {
  const std::optional<std::string> folder = config.rewards.model_folder();
  if (!folder) return {};
  return {{"rewards.functions", *folder, ModelConfig::Head::score, &ModelSource::reward, reads_tokens(config),
           reward_key()}};
}

std::vector<RoleSpec> ReinforcementMethod::roles(const RoleRequest& request, RoleSpec policy) const {
  const Config& config = request.config;
  std::vector<RoleSpec> roles = Method::roles(request, std::move(policy));
  if (has_reference(config) && !is_own_reference(config)) roles.push_back(reference_role(request, false));
  if (const std::optional<RoleFolder>& reward = config.source.reward) {
    DecoderShape shape = decoder_shape(reward->model, reward->model.vocab_size);
    quantize(shape, reward->quantization);
    roles.push_back(frozen_role(Role::reward, request, std::move(shape), reward->model.path));
  }
  return roles;
}

BatchConfig ReinforcementMethod::sample_batch(const Config& config) const {
  BatchConfig batch = config.batch;
  batch.micro = batch.global = batch.gradient_accumulation_steps = 1;
  return batch;
}

RolloutParts ReinforcementMethod::parts(const Config& config, const Dataset& data, int64_t epochs,
                                        int64_t mini_batches) const {
  const RolloutConfig& sampling = config.rollout;
  const int64_t tokens = softmax_rows(config.model, data);
  const bool excludes = sampling.top_k > 0 || sampling.top_p < 1;
  const int64_t words = excludes ? (tokens + 31) / 32 : 0;
  RolloutParts parts;
  parts.shape = {.sequences = config.batch.global,
                 .mini_batches = mini_batches,
                 .epochs = epochs,
                 .micro = config.batch.micro,
                 .max_length = config.batch.sequence_length,
                 .max_new_tokens = sampling.max_new_tokens,
                 .kept_words = words,
                 .kept_values = excludes ? max_kept_values(words, sampling.top_k > 0 ? sampling.top_k : tokens) : 0,
                 .seed = static_cast<uint64_t>(config.run.seed),
                 .graphs = config.parallel.cuda_graphs};
  parts.sampling = sampling;
  parts.tokens = tokens;
  parts.place_of = [rules = data.rules](const StoredRow& row) { return place_of_row(rules, row); };
  parts.tokenizer = parts.rewards.tokenizer = data.tokenizer;
  parts.references = has_reference(config);
  const std::vector<RewardSpec> specs = config.rewards.specs();
  const std::vector<std::string> names = reward_names(config.rewards);
  for (size_t i = 0; i < specs.size(); ++i) {
    WeightedReward& reward = parts.rewards.terms.emplace_back();
    reward.name = names[i];
    reward.weight = config.rewards.weight(i);
    if (specs[i].kind != RewardSpec::Kind::model) reward.spec = specs[i];
  }
  parts.rewards.time_limit = config.rewards.time_limit;
  if (!config.source.reward) return parts;
  parts.rewards.model_tokenizer = different_tokenizer(*data.tokenizer, *config.source.reward);
  if (parts.rewards.model_tokenizer != nullptr && reads_tokens(config)) {
    throw UserError(
        ExitCode::deck,
        fmt::format("{}: {} has a different tokenizer than the policy, so its token ids mean other texts. {}",
                    config.provenance.where(reward_key()), config.source.reward->model.path, other_tokenizer_advice()));
  }
  return parts;
}

void ReinforcementMethod::check_rows(const Config& config) const { check_columns_of_rows(config); }

void ReinforcementMethod::try_programs(const Config& config) const { try_reward_programs(config); }

}  // namespace llmtrain
