#pragma once
#include <optional>
#include <string>
#include <vector>

#include "evaluation/answer_evaluation.hpp"
#include "evaluation/choice_evaluation.hpp"

namespace llmtrain {

/// Scores of an evaluation beside those of the objective: evaluation.tasks and evaluation.metrics.
struct EvaluationScores {
  ChoiceEvaluation choices = {};
  AnswerEvaluation answers = {};

  bool empty() const { return choices.empty() && answers.empty(); }
  /// Names in the order of the values.
  std::vector<std::string> names() const;
  /// Writes the rows of the last run into a run's directory: evaluation_rows.jsonl, generations.jsonl.
  void write_rows(const std::string& directory) const;
  /// Returns nullopt if interrupted. Collective.
  std::optional<std::vector<NamedValue>> run(RoleModel& policy, Arena& arena, Runtime& runtime, SharedRows& rows,
                                             const LikelihoodBuffers& buffers, const Interrupted& interrupted);
};

}  // namespace llmtrain
