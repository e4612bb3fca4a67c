#pragma once
#include <cstddef>
#include <string>
#include <vector>

namespace llmtrain {

/// A label and cells, or a heading alone.
using TextRow = std::vector<std::string>;

/// Aligns the columns of a table for a terminal; long cells are cut. Columns that do not fit into `width` characters
/// come below, beside the first column again.
std::string aligned_text(std::vector<TextRow> rows, size_t width);

}  // namespace llmtrain
