#pragma once
// evaluation.metrics: the model answers the prompts of the validation rows by greedy decoding, and metrics of texts
// compare its answers with those of the rows.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "evaluation/evaluate.hpp"
#include "generate/generator.hpp"
#include "metrics/records.hpp"
#include "parallel/job/runtime.hpp"
#include "roles/model_set.hpp"
#include "scores/text_metric.hpp"
#include "text/tokenizer.hpp"

namespace llmtrain {

/// Text of tokens that continue others. Ids are decoded together, since a token at the beginning of a text may lack the
/// space that it has inside.
std::string continuation_text(const Tokenizer& tokenizer, std::span<const int32_t> before,
                              std::span<const int32_t> tokens);

/// A prompt of the validation data, and its answer there.
struct PromptWithAnswer {
  std::vector<int32_t> prompt;
  std::vector<int32_t> answer;
};

/// The documents of the first `steps` steps: the last run of trained targets is the answer, all before it the prompt,
/// which has one token at least. `has_prompts`: whether such a token is a prompt; else UserError(bad_content) if no
/// document has a longer one.
std::vector<PromptWithAnswer> prompts_with_answers(const DataStream& data, int64_t steps, bool has_prompts);

struct AnswerOptions {
  std::vector<std::string> metrics;  ///< as in evaluation.metrics
  int64_t max_new_tokens = 0;
  int64_t longest = 0;  ///< tokens of a prompt with its answer
  bool graphs = false;  ///< answers may be made by graphs of a GPU
};

class AnswerEvaluation {
 public:
  AnswerEvaluation() = default;
  /// Throws UserError. The tokenizer may be null without metrics.
  AnswerEvaluation(AnswerOptions options, std::vector<PromptWithAnswer> rows,
                   std::shared_ptr<const Tokenizer> tokenizer);

  bool empty() const { return options_.metrics.empty(); }
  /// Names of single metrics.
  const std::vector<std::string>& names() const { return names_; }
  /// Opens the metrics on rank 0, models of BERTScore included. Collective. Throws UserError.
  void open(Communicator& communicator);
  /// Metrics that have a signature, with it; on rank 0.
  std::vector<std::pair<std::string, std::string>> signatures() const;
  /// Registers the memory of decoding on one of `ranks` ranks.
  void plan(RoleModel& policy, Arena& arena, DType compute, int ranks);
  /// Sets the tokens that end an answer.
  void set_stop_ids(std::vector<int32_t> ids) { stop_ids_ = std::move(ids); }

  /// The answers, and so the scores, do not depend on the number of ranks. Returns nullopt if interrupted. Collective.
  std::optional<std::vector<NamedValue>> run(RoleModel& policy, Arena& arena, Runtime& runtime, const Mesh& mesh,
                                             const Interrupted& interrupted);
  /// The rows of the last run, a line of JSON each: prompt, text, reference.
  std::string rows_text() const;
  int64_t rows() const { return std::ssize(rows_); }

 private:
  /// The answers of all rows on rank 0, which compares them, empty texts on others; nullopt if interrupted. Collective.
  std::optional<std::vector<std::string>> answers(RoleModel& policy, Arena& arena, Runtime& runtime, const Mesh& mesh,
                                                  const Interrupted& interrupted);
  /// Scores of the segments by all metrics. Returns nullopt if interrupted. Collective.
  std::optional<std::vector<double>> compare(Communicator& communicator, const Interrupted& interrupted);

  AnswerOptions options_;
  std::vector<std::string> names_;
  std::vector<std::unique_ptr<TextMetric>> metrics_;  ///< on rank 0
  std::vector<PromptWithAnswer> rows_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::vector<int32_t> stop_ids_;
  std::unique_ptr<Generator> generator_;
  std::vector<TextSegment> segments_;  ///< of the last run
};

}  // namespace llmtrain
