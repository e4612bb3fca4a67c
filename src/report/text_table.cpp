#include "report/text_table.hpp"

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "core/error.hpp"
#include "core/terminal.hpp"
#include "report/html_text.hpp"

namespace llmtrain {

namespace {

constexpr size_t max_cell_width = 40;

/// Length of UTF-8 text in characters.
size_t width_of(std::string_view text) {
  return static_cast<size_t>(
      std::ranges::count_if(text, [](char c) { return (static_cast<uint8_t>(c) & 0xC0U) != 0x80; }));
}

/// One line of at most `max_cell_width` characters.
std::string one_line(std::string_view text) {
  std::string line = without_controls(clean_text(text.substr(0, 4 * max_cell_width)));
  std::ranges::replace(line, '\n', ' ');
  std::ranges::replace(line, '\t', ' ');
  return width_of(line) <= max_cell_width ? line : std::string(fit(line, max_cell_width - 3)) + "...";
}

/// Returns the end of the columns from `begin` on that fit beside the first column; at least one does.
size_t end_of_block(const std::vector<size_t>& widths, size_t begin, size_t width) {
  size_t end = begin + 1;
  for (size_t used = widths[0] + 2 + widths[begin]; end < widths.size(); ++end) {
    used += 2 + widths[end];
    if (used > width) break;
  }
  return end;
}

}  // namespace

std::string aligned_text(std::vector<TextRow> rows, size_t width) {
  std::vector<size_t> widths;
  for (TextRow& row : rows) {
    for (std::string& cell : row) cell = one_line(cell);
    if (row.size() < 2) continue;  // a heading
    widths.resize(row.size());
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], width_of(row[c]));
  }
  std::string text;
  for (size_t begin = 1, end = 0; begin < widths.size(); begin = end) {
    end = end_of_block(widths, begin, width);
    if (begin > 1) text += '\n';
    for (const TextRow& row : rows) {
      text += row.front();
      size_t padding = row.size() < 2 ? 0 : widths[0] - width_of(row.front());
      for (size_t c = begin; c < std::min(end, row.size()); ++c) {
        text += std::string(padding + 2, ' ') + row[c];
        padding = widths[c] - width_of(row[c]);
      }
      text += '\n';
    }
  }
  return text;
}

}  // namespace llmtrain
