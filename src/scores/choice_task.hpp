#pragma once
// Tasks that a model solves by log-likelihoods: rows with a context and choices of how it continues, and what scores
// them. Prompts and scores follow lm-evaluation-harness. To add a format of rows, add a line in choice_formats.cpp.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/files/task_files.hpp"

namespace llmtrain {

/// A text after a context.
struct ContextAndText {
  std::string context, continuation;
};

/// A row of a task.
struct ChoiceRow {
  int64_t line = 0;  ///< in its file, from 1
  std::vector<ContextAndText> choices;
  std::vector<int64_t> lengths;  ///< code points of each choice
  int64_t answer = 0;            ///< index of the right choice
};

struct ChoiceTask {
  enum class Kind : uint8_t {
    choices,       ///< the most likely continuation is the model's answer: acc, acc_norm
    contexts,      ///< the same continuation after several contexts: acc
    continuation,  ///< one continuation, right if greedy decoding would write it: perplexity, acc
  };
  std::string name;
  std::string path;
  Kind kind = Kind::choices;
  std::vector<ChoiceRow> rows;  ///< at least one

  std::string place(const ChoiceRow& row) const { return path + ":" + std::to_string(row.line); }
};

/// Throws UserError(bad_content) "file:line: ..." for a row that is not a row of the first row's format, or has no
/// answer.
ChoiceTask parse_choice_task(const TaskFile& file);
/// Name of the task of a file.
std::string choice_task_name(std::string_view path);

/// The result of a choice.
struct Likelihood {
  double logp = 0;      ///< sum over the tokens of the continuation, nats
  bool greedy = false;  ///< each token is the most probable one
};

struct NamedScore {
  std::string name;
  double value;
};

/// Names of the scores, in order.
std::vector<std::string> choice_score_names(ChoiceTask::Kind kind);
/// Scores of the task by the results of all choices of all rows, in order. The standard error of a mean of one row is
/// NaN. Among equal choices the first one is the model's answer.
std::vector<NamedScore> score_choices(const ChoiceTask& task, const std::vector<Likelihood>& results);

}  // namespace llmtrain
