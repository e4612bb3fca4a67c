#pragma once
// Formats of the rows of a task by log-likelihoods.

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/files/json_node.hpp"
#include "scores/choice_task.hpp"

namespace llmtrain {

/// Facts about a row that stand outside of it.
struct ChoiceSource {
  std::string subject;                ///< of the file's name: abstract_algebra_test.csv has "abstract algebra"
  std::optional<int64_t> label = {};  ///< of the row, in a file beside it
};

struct ChoiceFormat {
  std::string_view name;
  ChoiceTask::Kind kind;
  /// Columns that tell the format, separated by spaces.
  std::string_view columns;
  /// Sets choices, answer and lengths. Throws UserError(bad_content) without the place of the row.
  void (*read)(const OrderedJsonNode& row, const ChoiceSource& source, ChoiceRow& out);
};

std::span<const ChoiceFormat> choice_formats();

}  // namespace llmtrain
