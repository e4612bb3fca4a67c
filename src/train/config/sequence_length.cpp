#include "train/config/sequence_length.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "metrics/run_log.hpp"

namespace llmtrain {

namespace {

constexpr const char* length_key = "batch.sequence_length";
constexpr int64_t error_length = 4096;                ///< keeps an error of model.path from causing others
constexpr int64_t max_pass = (int64_t{1} << 31) - 1;  ///< tokens of a forward pass

}  // namespace

void take_sequence_length(DeckLoader& deck, Config& config, const TaskRules& task,
                          const std::optional<ModelConfig>& loaded, ModelFolders& folders) {
  if (task.max_default_length() == 0 || deck.given(length_key)) return;
  config.batch.sequence_length = error_length;
  if (!loaded) return;
  const bool is_folder = config.source.checkpoint.empty();
  const int64_t tokenizer_limit = is_folder ? folders.find(config.model.path, {}).tokens : 0;
  const bool by_tokenizer = tokenizer_limit > 0 && tokenizer_limit < loaded->max_seq_len;
  const int64_t limit = by_tokenizer ? tokenizer_limit : loaded->max_seq_len;
  const char* file = !is_folder ? "the checkpoint" : by_tokenizer ? "tokenizer_config.json" : "config.json";
  if (limit < 1) return deck.fail(length_key, "is required: model.path gives no limit of a text's length");
  int64_t length = std::min(limit, max_pass / std::max<int64_t>(config.batch.micro, 1));
  length = std::min(length, task.max_default_length());
  if (const int64_t tokens = config.data.max_tokens_per_batch; tokens > 0) length = std::min(length, tokens);
  config.batch.sequence_length = length;
  const std::string bound = length == limit ? "" : fmt::format("at most {}; ", length);
  deck.set(length_key, Origin::automatic, fmt::format("{}the limit of model.path is {} ({})", bound, limit, file));
}

bool chooses_sequence_length(const Config& config) {
  return config.provenance.at(length_key).origin == Origin::automatic;
}

void fit_sequence_length(Config& config, int64_t longest_prompt) {
  const int64_t needed = longest_prompt + config.generate.max_new_tokens;
  if (needed >= config.batch.sequence_length) return;
  config.batch.sequence_length = needed;
  config.provenance.set(length_key, Origin::automatic,
                        fmt::format("the longest prompt, {}, and generate.max_new_tokens; {}", longest_prompt,
                                    config.provenance.at(length_key).note));
}

void print_length(RunLog& log, const Config& config) {
  if (!chooses_sequence_length(config)) return;
  log.print(
      fmt::format("length     {} tokens ({})", config.batch.sequence_length, config.provenance.at(length_key).note));
}

}  // namespace llmtrain
