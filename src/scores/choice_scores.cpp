// Scores of tasks by log-likelihoods, as lm-evaluation-harness computes them.

#include <cmath>
#include <limits>

#include "core/error.hpp"
#include "core/exact_sum.hpp"
#include "scores/choice_task.hpp"

namespace llmtrain {

namespace {

/// A mean of outcomes that are 0 or 1, with its standard error.
struct ShareOfRows {
  int64_t count = 0, right = 0;

  void add(bool outcome) {
    ++count;
    right += outcome ? 1 : 0;
  }
  double mean() const { return static_cast<double>(right) / static_cast<double>(count); }
  /// Sample standard deviation over the root of the number of rows.
  double standard_error() const {
    if (count < 2) return std::numeric_limits<double>::quiet_NaN();
    return std::sqrt(mean() * (1 - mean()) / static_cast<double>(count - 1));
  }
  void put(std::vector<NamedScore>& scores, const std::string& name) const {
    scores.push_back({name, mean()});
    scores.push_back({name + "_stderr", standard_error()});
  }
};

/// Index of the largest value, the first one among equals.
template <class Value>
size_t best_choice(size_t count, const Value& value) {
  size_t best = 0;
  for (size_t c = 1; c < count; ++c) best = value(c) > value(best) ? c : best;
  return best;
}

}  // namespace

std::vector<std::string> choice_score_names(ChoiceTask::Kind kind) {
  switch (kind) {
    case ChoiceTask::Kind::choices:
      return {"acc", "acc_stderr", "acc_norm", "acc_norm_stderr"};
    case ChoiceTask::Kind::contexts:
      return {"acc", "acc_stderr"};
    case ChoiceTask::Kind::continuation:
      break;
  }
  return {"perplexity", "acc", "acc_stderr"};
}

std::vector<NamedScore> score_choices(const ChoiceTask& task, const std::vector<Likelihood>& results) {
  ShareOfRows right, right_by_length, greedy;
  ExactSum sum;
  size_t first = 0;
  for (const ChoiceRow& row : task.rows) {
    const size_t count = row.choices.size(), answer = static_cast<size_t>(row.answer);
    LLMTRAIN_CHECK(first + count <= results.size(), "each choice has a result");
    const auto logp = [&](size_t c) { return results[first + c].logp; };
    right.add(best_choice(count, logp) == answer);
    right_by_length.add(best_choice(count, [&](size_t c) { return logp(c) / static_cast<double>(row.lengths[c]); }) ==
                        answer);
    sum.add(logp(answer));
    greedy.add(results[first + answer].greedy);
    first += count;
  }
  std::vector<NamedScore> scores;
  if (task.kind == ChoiceTask::Kind::continuation) {
    scores.push_back({"perplexity", std::exp(-sum.value() / static_cast<double>(task.rows.size()))});
    greedy.put(scores, "acc");
    return scores;
  }
  right.put(scores, "acc");
  if (task.kind == ChoiceTask::Kind::choices) right_by_length.put(scores, "acc_norm");
  return scores;
}

}  // namespace llmtrain
