#include "evaluation/evaluation_scores.hpp"

#include "core/files/whole_file.hpp"

namespace llmtrain {

std::vector<std::string> EvaluationScores::names() const {
  std::vector<std::string> all = choices.names();
  all.insert(all.end(), answers.names().begin(), answers.names().end());
  return all;
}

void EvaluationScores::write_rows(const std::string& directory) const {
  if (!choices.empty()) write_whole_file(directory + "/evaluation_rows.jsonl", choices.rows_text());
  if (!answers.empty()) write_whole_file(directory + "/generations.jsonl", answers.rows_text());
}

std::optional<std::vector<NamedValue>> EvaluationScores::run(RoleModel& policy, Arena& arena, Runtime& runtime,
                                                             SharedRows& rows, const LikelihoodBuffers& buffers,
                                                             const Interrupted& interrupted) {
  Context ctx{policy.params(), arena, runtime.stream()};
  ctx.rows = &rows;
  auto values = choices.run(policy.actor(), ctx, buffers, rows.mesh(), interrupted);
  if (!values) return std::nullopt;
  const auto more = answers.run(policy, arena, runtime, rows.mesh(), interrupted);
  if (!more) return std::nullopt;
  values->insert(values->end(), more->begin(), more->end());
  return values;
}

}  // namespace llmtrain
