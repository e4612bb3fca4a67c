#pragma once
// llmtool score with metrics of texts: hypotheses against references, line by line.

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "scores/text_metric.hpp"

namespace llmtrain {

struct TextScoreOptions {
  std::string hypotheses;
  std::vector<std::string> references;
  std::string hypothesis_column, reference_column;  ///< of rows; empty: the defaults
  std::string tokenize = "13a", smooth_method = "exp";
  TextMetricOptions metric;  ///< but for the two choices above
  bool sentence_level = false;

  void add_to(CLI::App& app);
  /// Returns the names of these options that are on the command line.
  std::vector<std::string> given() const;

 private:
  std::vector<const CLI::Option*> options_;
};

/// Prints the score of the corpus, or one for each segment, by every metric. Throws UserError.
void score_texts(const std::vector<std::string>& metrics, const TextScoreOptions& options, bool json);

}  // namespace llmtrain
