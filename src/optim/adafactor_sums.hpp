#pragma once
// Sums of squares over the rows and columns of a matrix, as integers, so that their order does not matter.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "core/params.hpp"

namespace llmtrain {

/// Sums over the Hugging Face tensors in a matrix, each with columns of its own. Squares are multiples of 2^-80 of the
/// largest one's power of two, in two integers of 40 bits; smaller parts are cut off.
class MatrixSums {
 public:
  explicit MatrixSums(const ParamSpec& matrix)
      : matrix_(matrix),
        maxima_(matrix.slices.size()),
        integers_(static_cast<size_t>(2 * (matrix.rows + std::ssize(matrix.slices) * matrix.columns))) {}

  /// Values from element `first` of the matrix on. First all are seen, then the maxima of all ranks are known and
  /// begin() is called, then all are added.
  void see(int64_t first, std::span<const float> values) {
    each(first, values, [&](size_t slice, int64_t, int64_t, float g) {
      maxima_[slice] = std::max(maxima_[slice], int64_t{std::bit_cast<int32_t>(std::fabs(g))});
    });
  }
  std::span<int64_t> maxima() { return maxima_; }
  void begin() {
    for (const int64_t bits : maxima_) {
      const auto largest = std::bit_cast<float>(static_cast<int32_t>(bits));
      exponents_.push_back(largest > 0 && std::isfinite(largest) ? std::ilogb(largest) + 1 : 0);
    }
  }
  void add(int64_t first, std::span<const float> values) {
    each(first, values, [&](size_t slice, int64_t row, int64_t column, float g) {
      const double part = std::ldexp(double{g}, -exponents_[slice]), square = part * part * unit;  // exact
      const double high = std::floor(square), low = std::floor((square - high) * unit);
      for (const int64_t at : {row, matrix_.rows + column}) {
        integers_[static_cast<size_t>(2 * at)] += static_cast<uint64_t>(high);
        integers_[static_cast<size_t>(2 * at + 1)] += static_cast<uint64_t>(low);
      }
    });
  }
  std::span<uint64_t> integers() { return integers_; }

  std::vector<float> row_means() const {
    std::vector<float> means;
    for (size_t slice = 0; slice < matrix_.slices.size(); ++slice) {
      const ParamSlice& s = matrix_.slices[slice];
      for (int64_t r = s.first_row; r < s.first_row + s.rows; ++r) means.push_back(mean(r, slice, matrix_.columns));
    }
    return means;
  }
  std::vector<float> column_means() const {
    std::vector<float> means;
    for (size_t slice = 0; slice < matrix_.slices.size(); ++slice) {
      for (int64_t c = 0; c < matrix_.columns; ++c) {
        const int64_t at = matrix_.rows + static_cast<int64_t>(slice) * matrix_.columns + c;
        means.push_back(mean(at, slice, matrix_.slices[slice].rows));
      }
    }
    return means;
  }

 private:
  static constexpr double unit = 0x1p40;

  /// Calls visit(slice, row, column of all slices, value).
  template <class Visit>
  void each(int64_t first, std::span<const float> values, const Visit& visit) const {
    size_t slice = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      const int64_t element = first + static_cast<int64_t>(i), row = element / matrix_.columns;
      while (row >= matrix_.slices[slice].first_row + matrix_.slices[slice].rows) ++slice;
      visit(slice, row, static_cast<int64_t>(slice) * matrix_.columns + element % matrix_.columns, values[i]);
    }
  }
  float mean(int64_t at, size_t slice, int64_t count) const {
    const auto high = static_cast<double>(integers_[static_cast<size_t>(2 * at)]);
    const auto low = static_cast<double>(integers_[static_cast<size_t>(2 * at + 1)]);
    const double sum = std::ldexp(std::fma(low, 1 / unit, high) / unit, 2 * exponents_[slice]);
    return static_cast<float>(sum / static_cast<double>(count) + 1e-30);
  }

  const ParamSpec& matrix_;
  std::vector<int64_t> maxima_;  ///< bits of the largest magnitude, by slice
  std::vector<int> exponents_;
  std::vector<uint64_t> integers_;  ///< of rows, then of columns
};

}  // namespace llmtrain
