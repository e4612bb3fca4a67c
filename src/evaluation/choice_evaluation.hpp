#pragma once
// evaluation.tasks: scores of a model by log-likelihoods of choices.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/stream/data_stream.hpp"
#include "evaluation/evaluate.hpp"
#include "metrics/records.hpp"
#include "models/model.hpp"
#include "parallel/mesh.hpp"
#include "scores/continuation.hpp"

namespace llmtrain {

// Log-probabilities of continuations under a model, over all ranks.

/// A scored token.
struct TokenLikelihood {
  float logp = 0;  ///< nats
  bool greedy = false;
};

/// Buffers of score_continuations().
struct LikelihoodBuffers {
  BatchBuffers& batch;  ///< of at least `rows` rows and segments_for(rows) segments
  Tensor logp;          ///< fp32 [rows]
  Tensor argmax;        ///< int32 [rows]

  int64_t rows() const { return logp.dim(0); }
};

/// Segments of a batch of this many rows of continuations, of which one may have a single row.
constexpr int64_t segments_for(int64_t rows) { return rows + 1; }

/// Returns the tokens of all continuations, one after the other, on every rank. Continuations share batches of at most
/// buffers.rows() rows, which the ranks take in turn. The bits of a token are a function of its continuation alone:
/// products are batch-invariant, and attention does not cross segments. Returns nullopt if interrupted. Collective.
std::optional<std::vector<TokenLikelihood>> score_continuations(Model& model, Context ctx,
                                                                std::span<const TokenContinuation> continuations,
                                                                const LikelihoodBuffers& buffers, const Mesh& mesh,
                                                                const Interrupted& interrupted);

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
                                             const Mesh& mesh, const Interrupted& interrupted);
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
