#include "evaluation/choice_evaluation.hpp"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "core/error.hpp"
#include "core/number_text.hpp"
#include "text/tokens_beyond_embedding.hpp"

namespace llmtrain {

using nlohmann::ordered_json;

ChoiceEvaluation::ChoiceEvaluation(const std::vector<TaskFile>& files, const Tokenizer* tokenizer, int64_t longest,
                                   int64_t vocabulary) {
  std::set<std::string> names;
  for (const TaskFile& file : files) {
    if (tokenizer == nullptr) {
      throw UserError(ExitCode::deck,
                      "evaluation.tasks: the model has no tokenizer, so that texts cannot be scored: "
                      "name its tokenizer with data.tokenizer");
    }
    Task& task = tasks_.emplace_back();
    task.rows = parse_choice_task(file);
    if (!names.insert(task.rows.name).second) {
      throw UserError(ExitCode::deck,
                      fmt::format("evaluation.tasks: two files give the task {}: rename one of them", task.rows.name));
    }
    task.choices = encode_choices(*tokenizer, task.rows, longest);
    for (const TokenContinuation& choice : task.choices) {
      require_rows(choice.ids, tokenizer, vocabulary, file.path);
      task.truncated += choice.truncated > 0 ? 1 : 0;
    }
  }
}

std::vector<std::string> ChoiceEvaluation::names() const {
  std::vector<std::string> all;
  for (const Task& task : tasks_) {
    for (const std::string& score : choice_score_names(task.rows.kind)) all.push_back(task.rows.name + "/" + score);
  }
  return all;
}

std::vector<std::string> ChoiceEvaluation::descriptions() const {
  std::vector<std::string> lines;
  for (const Task& task : tasks_) {
    std::string& line = lines.emplace_back(fmt::format("task       {}: {}, {}", task.rows.name,
                                                       counted(std::ssize(task.rows.rows), "row"),
                                                       counted(std::ssize(task.choices), "choice")));
    if (task.truncated > 0) line += fmt::format("; {} without the beginning of the context", task.truncated);
  }
  return lines;
}

void ChoiceEvaluation::Task::sum_up() {
  results.clear();
  size_t token = 0;
  for (const TokenContinuation& choice : choices) {
    Likelihood& result = results.emplace_back();
    result.greedy = true;
    for (int64_t t = 0; t < choice.scored; ++t, ++token) {
      result.logp += static_cast<double>(tokens[token].logp);
      result.greedy = result.greedy && tokens[token].greedy;
    }
    if (std::isfinite(result.logp)) continue;
    throw UserError(ExitCode::diverged, rows.path +
                                            ": a log-probability is not finite: the weights, or products of them in "
                                            "this precision.compute, overflow; try precision.compute = fp32");
  }
  scores = score_choices(rows, results);
}

std::optional<std::vector<NamedValue>> ChoiceEvaluation::run(Model& model, const Context& ctx,
                                                             const LikelihoodBuffers& buffers,
                                                             Communicator& communicator,
                                                             const Interrupted& interrupted) {
  std::vector<NamedValue> values;
  for (Task& task : tasks_) {
    auto tokens = score_continuations(model, ctx, task.choices, buffers, communicator, interrupted);
    if (!tokens) return std::nullopt;
    task.tokens = std::move(*tokens);
    task.sum_up();
    for (const NamedScore& score : task.scores) {
      const std::string name = task.rows.name + "/" + score.name;
      values.push_back({name, score.name.ends_with("_stderr") ? "" : name, score.value});
    }
  }
  return values;
}

std::string ChoiceEvaluation::rows_text() const {
  std::string text;
  for (const Task& task : tasks_) {
    size_t choice = 0, token = 0;
    for (const ChoiceRow& row : task.rows.rows) {
      ordered_json line = {{"task", task.rows.name}, {"line", row.line}, {"answer", row.answer}};
      line["choices"] = ordered_json::array();
      for (size_t c = 0; c < row.choices.size(); ++c, ++choice) {
        const Likelihood& result = task.results[choice];
        std::vector<float> logprobs;
        for (int64_t t = 0; t < task.choices[choice].scored; ++t, ++token) logprobs.push_back(task.tokens[token].logp);
        line["choices"].push_back({{"sum", result.logp}, {"greedy", result.greedy}, {"logprobs", logprobs}});
      }
      text += line.dump() + "\n";
    }
  }
  return text;
}

std::string ChoiceEvaluation::report() const {
  ordered_json report = ordered_json::object();
  for (const Task& task : tasks_) {
    ordered_json& scores = report[task.rows.name];
    for (const NamedScore& score : task.scores) scores[score.name] = score.value;
    scores["rows"] = task.rows.rows.size();
    scores["truncated"] = task.truncated;
  }
  return report.dump();
}

}  // namespace llmtrain
