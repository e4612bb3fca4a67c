#include "tasks/score_parts.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "core/deck/suggestion.hpp"
#include "core/message.hpp"
#include "data/files/task_files.hpp"
#include "hf/export.hpp"
#include "hf/read_config.hpp"
#include "parallel/local_communicator.hpp"
#include "scores/choice_task.hpp"
#include "text/chat/chat_export.hpp"
#include "train/checkpoint_model.hpp"

namespace llmtrain {

EvaluationScores make_scores(const Config& config, const Dataset& data, const DataStream* validation, int64_t steps) {
  const EvaluationConfig& evaluation = config.evaluation;
  const int64_t longest = config.batch.sequence_length;
  EvaluationScores scores;
  scores.choices = ChoiceEvaluation(data.tasks, data.tokenizer.get(), longest, config.model.vocab_size);
  if (evaluation.metrics.empty()) return scores;
  if (validation == nullptr) {
    throw UserError(ExitCode::deck, fmt::format("{}: needs data.validation, whose prompts the model answers",
                                                config.provenance.where("evaluation.metrics")));
  }
  AnswerOptions options;
  options.metrics = text_metric_names(evaluation.metrics);
  options.encoder = text_metric_encoder(evaluation.metrics);
  options.max_new_tokens = evaluation.max_new_tokens;
  options.longest = longest;
  scores.answers = AnswerEvaluation(options, prompts_with_answers(*validation, steps), data.tokenizer);
  return scores;
}

std::vector<int32_t> answer_stop_ids(const Config& config, const Dataset& data, Communicator& communicator) {
  std::vector<int64_t> ids;
  if (config.evaluation.metrics.empty()) return {};
  std::string packed;
  throw_on_all_ranks(communicator, [&] {
    if (communicator.rank() != 0) return;
    ids = export_chat(data.chat.config, *data.tokenizer, data.chat.files).stop_ids;
    if (data.tokenizer->eos_id() >= 0) ids.push_back(data.tokenizer->eos_id());
    std::map<std::string, std::string> texts;
    const ModelSource& source = config.source;
    if (!source.checkpoint.empty()) {
      texts = CheckpointModel::texts(source.checkpoint);
    } else if (!source.instead.empty()) {
      texts = CheckpointModel::texts(source.instead);
    } else if (!config.model.path.empty()) {
      texts = model_texts(config.model.path);
    }
    for (const char* name : {"config.json", "generation_config.json"}) {
      const auto text = texts.find(name);
      if (text == texts.end()) continue;
      const std::vector<int64_t> more = parse_generation_ids(text->second, config.model.path + "/" + name, {}).eos;
      ids.insert(ids.end(), more.begin(), more.end());
    }
    Message message;
    message.put(ids);
    packed = message.bytes();
  });
  communicator.broadcast(packed);
  std::vector<int64_t> received;
  Message(packed).take(received);
  return {received.begin(), received.end()};
}

int64_t rows_of_scores(const Config& config, const Dataset& data) {
  const bool any = !data.tasks.empty() || !config.evaluation.metrics.empty();
  return any ? config.batch.sequence_length : 0;
}

void check_scores(const Config& config) {
  const auto alone = make_local_communicator();
  for (const TaskFile& file : read_task_files(config.evaluation.tasks, *alone)) parse_choice_task(file);
}

void check_best_metric(const Config& config, const std::vector<std::string>& objective, bool counts_tokens,
                       const EvaluationScores& scores) {
  std::vector<std::string> names = {"loss"};
  if (counts_tokens) names.emplace_back("token_accuracy");
  names.insert(names.end(), objective.begin(), objective.end());
  for (const std::string& name : scores.names()) names.push_back(name);
  for (std::string& name : names) name = "validation/" + name;
  const std::string& wanted = config.checkpoint.best_metric;
  if (std::ranges::find(names, wanted) != names.end()) return;
  const std::vector<std::string_view> known(names.begin(), names.end());
  throw UserError(ExitCode::deck, fmt::format("{}: evaluations have no metric '{}'{}; there are {}",
                                              config.provenance.where("checkpoint.best_metric"), wanted,
                                              did_you_mean(wanted, known), fmt::join(names, ", ")));
}

}  // namespace llmtrain
