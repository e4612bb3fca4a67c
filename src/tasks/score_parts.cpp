#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/deck/suggestion.hpp"
#include "data/files/task_files.hpp"
#include "parallel/local_communicator.hpp"
#include "scores/choice_task.hpp"
#include "tasks/parts.hpp"

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
  options.metrics = evaluation.metrics;
  options.max_new_tokens = evaluation.max_new_tokens;
  options.longest = longest;
  options.graphs = config.parallel.cuda_graphs;
  const bool has_prompts = data.has_conversations() && config.chat.train_on != ChatConfig::TrainOn::all;
  scores.answers = AnswerEvaluation(options, prompts_with_answers(*validation, steps, has_prompts), data.tokenizer);
  return scores;
}

int64_t rows_of_scores(const Config& config, const Dataset& data) {
  const bool any = !data.tasks.empty() || !config.evaluation.metrics.empty();
  return any ? config.batch.sequence_length : 0;
}

void check_scores(const Config& deck) {
  const auto alone = make_local_communicator();
  open_text_metrics(deck.evaluation.metrics);
  const SampleRules rules = sample_rules(deck).for_evaluation();
  if (!rules.encodes_any_text() || !rules.instructions || deck.data.validation.empty()) {
    for (const TaskFile& file : read_task_files(deck.evaluation.tasks, *alone)) parse_choice_task(file);
    return;
  }
  RunFacts facts(deck);
  const Dataset data = load_data(deck, facts, rules, *alone, [](const std::string&) {});
  const Config config = with_facts(deck, facts);
  const DataStream validation(data.train, rules, config.batch, /*seed=*/0, false);
  make_scores(config, data, &validation, first_steps(config.evaluation, validation));
}

void print_signatures(RunLog& log, const AnswerEvaluation& answers) {
  for (const auto& [name, signature] : answers.signatures()) log.print(fmt::format("{:<10} {}", name, signature));
}

void check_best_metric(const Config& config, const std::vector<std::string>& objective, bool counts_tokens,
                       const EvaluationScores& scores) {
  std::vector<std::string> names = {"loss"};
  if (counts_tokens) names.emplace_back("token_accuracy");
  names.insert(names.end(), objective.begin(), objective.end());
  for (const std::string& name : scores.names()) {
    if (!name.ends_with("_stderr")) names.push_back(name);
  }
  for (std::string& name : names) name = "validation/" + name;
  const std::string& wanted = config.checkpoint.best_metric;
  if (std::ranges::find(names, wanted) != names.end()) return;
  const std::vector<std::string_view> known(names.begin(), names.end());
  throw UserError(ExitCode::deck, fmt::format("{}: evaluations have no metric '{}'{}; there are {}",
                                              config.provenance.where("checkpoint.best_metric"), wanted,
                                              did_you_mean(wanted, known), fmt::join(names, ", ")));
}

}  // namespace llmtrain
