#include "metrics/sparkline.hpp"

#include <algorithm>
#include <cmath>

namespace llmtrain {

void Sparkline::add(double value) {
  if (!std::isfinite(value)) return;
  if (cells_.empty() || cells_.back().count == values_of_cell_) {
    if (cells_.size() == max_cells) {  // every two become one
      for (size_t i = 0; i < max_cells / 2; ++i) {
        const Cell &left = cells_[2 * i], &right = cells_[2 * i + 1];
        cells_[i] = {left.sum + right.sum, left.count + right.count};
      }
      cells_.resize(max_cells / 2);
      values_of_cell_ *= 2;
    }
    cells_.emplace_back();
  }
  cells_.back().sum += value;
  ++cells_.back().count;
}

std::string Sparkline::text() const {
  constexpr double levels = 8;
  if (cells_.size() < 2) return {};
  const auto [least, most] =
      std::ranges::minmax_element(cells_, [](const Cell& a, const Cell& b) { return a.mean() < b.mean(); });
  const double low = least->mean(), range = most->mean() - low;
  std::string text;
  for (const Cell& cell : cells_) {
    const double height = range > 0 ? (cell.mean() - low) / range : 0;
    const int level = static_cast<int>(std::min(height * levels, levels - 1));
    text += "\xE2\x96";  // U+2581 is E2 96 81
    text += static_cast<char>(0x81 + level);
  }
  return text;
}

}  // namespace llmtrain
