#pragma once
#include <string>
#include <vector>

namespace llmtrain {

/// A small curve of all values so far, in block characters of UTF-8 (U+2581 to U+2588).
class Sparkline {
 public:
  /// Values that are not finite are left out.
  void add(double value);
  /// At most `max_cells` characters; empty before the second value.
  std::string text() const;
  static constexpr size_t max_cells = 16;

 private:
  struct Cell {
    double sum = 0;
    int64_t count = 0;
    double mean() const { return sum / static_cast<double>(count); }
  };
  std::vector<Cell> cells_;
  int64_t values_of_cell_ = 1;
};

}  // namespace llmtrain
