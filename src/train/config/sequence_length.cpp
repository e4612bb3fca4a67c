#include "train/config/sequence_length.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace llmtrain {

namespace {

constexpr const char* length_key = "batch.sequence_length";
constexpr int64_t error_length = 4096;                ///< keeps an error of model.path from causing others
constexpr int64_t max_pass = (int64_t{1} << 31) - 1;  ///< tokens of a forward pass

}  // namespace

void take_sequence_length(DeckLoader& deck, Config& config, const TaskRules& task,
                          const std::optional<ModelConfig>& loaded, ModelFolders& folders) {
  if (task.max_default_length() == 0 || deck.given(length_key)) return;
  if (!loaded) return config.batch.take_length(deck, error_length, "");
  const bool is_folder = config.source.checkpoint.empty();
  const int64_t tokenizer_limit = is_folder ? folders.find(config.model.path, {}).tokens : 0;
  const bool by_tokenizer = tokenizer_limit > 0 && tokenizer_limit < loaded->max_seq_len;
  const int64_t limit = by_tokenizer ? tokenizer_limit : loaded->max_seq_len;
  const char* file = !is_folder ? "the checkpoint" : by_tokenizer ? "tokenizer_config.json" : "config.json";
  if (limit < 1) {
    config.batch.take_length(deck, error_length, "");
    return deck.fail(length_key, "is required: model.path gives no limit of a text's length");
  }
  int64_t length = std::min(limit, max_pass / std::max<int64_t>(config.batch.micro, 1));
  length = std::min(length, task.max_default_length());
  if (const int64_t tokens = config.data.max_tokens_per_batch; tokens > 0) length = std::min(length, tokens);
  const std::string bound = length == limit ? "" : fmt::format("at most {}; ", length);
  config.batch.take_length(deck, length, fmt::format("{}the limit of model.path is {} ({})", bound, limit, file));
}

bool chooses_sequence_length(const Config& config) {
  return config.provenance.at(length_key).origin == Origin::automatic;
}

int64_t fit_sequence_length(const Config& config, int64_t longest_prompt) {
  return std::min(config.batch.sequence_length, longest_prompt + config.generate.max_new_tokens);
}

}  // namespace llmtrain
