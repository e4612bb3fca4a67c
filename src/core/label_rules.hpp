#pragma once
// Labels of texts, or of their words (run.task = classify).

#include <cstdint>
#include <string>
#include <vector>

#include "core/deck/named_enum.hpp"

namespace llmtrain {

/// One of the labels, any number of them, or a number.
enum class LabelProblem : uint8_t { single, multi, regression };

template <>
inline constexpr auto enum_names<LabelProblem> = name_list("single", "multi", "regression");

struct LabelRules {
  LabelProblem problem = LabelProblem::single;
  bool tokens = false;             ///< each word has a label; otherwise a text has
  std::vector<std::string> names;  ///< in the order of the head's outputs; empty: those of the rows, or a number

  /// Values that are stored of a text, or of each of its tokens.
  int64_t width() const { return problem == LabelProblem::multi ? static_cast<int64_t>(names.size()) : 1; }
};

/// Most labels: the counts of a confusion matrix are in memory.
inline constexpr size_t max_labels = 2048;

}  // namespace llmtrain
