#pragma once
// evaluation.tasks: scores of a model by log-likelihoods of choices.

#include <optional>
#include <string>
#include <vector>

#include "evaluation/likelihoods.hpp"
#include "metrics/records.hpp"

namespace llmtrain {

class ChoiceEvaluation {
 public:
  /// Inputs of a choice are at most `longest` tokens, whose ids are below `vocabulary`. The tokenizer may be null
  /// without files. Throws UserError.
  ChoiceEvaluation() = default;
  ChoiceEvaluation(const std::vector<TaskFile>& files, const Tokenizer* tokenizer, int64_t longest, int64_t vocabulary);

  bool empty() const { return tasks_.empty(); }
  /// Names of all scores, TASK/acc and so on, in their order.
  std::vector<std::string> names() const;
  /// Lines for the console: rows of each task, and how many choices lost the beginning of their context.
  std::vector<std::string> descriptions() const;

  /// Scores all tasks. Returns nullopt if interrupted. Throws UserError(diverged) if a log-probability is not finite.
  /// Collective.
  std::optional<std::vector<NamedValue>> run(Model& model, const Context& ctx, const LikelihoodBuffers& buffers,
                                             Communicator& communicator, const Interrupted& interrupted);
  /// The rows of the last run, a line of JSON each: log-probabilities of each choice's tokens, nats.
  std::string rows_text() const;
  /// The scores of the last run as JSON text of an object by task.
  std::string report() const;

 private:
  struct Task {
    ChoiceTask rows;
    std::vector<TokenContinuation> choices;
    int64_t truncated = 0;                ///< choices whose context is cut
    std::vector<TokenLikelihood> tokens;  ///< of all choices, in order
    std::vector<Likelihood> results;      ///< of the choices
    std::vector<NamedScore> scores;

    void sum_up();
  };
  std::vector<Task> tasks_;
};

}  // namespace llmtrain
