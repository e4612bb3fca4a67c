// Factors of several neighbours at once equal those of single elements.
#include <gtest/gtest.h>

#include <vector>

#include "kernels/cuda/dropout_row.cuh"

namespace llmtrain::cuda {
namespace {

struct Rows {
  std::vector<int64_t> sequences = {7, 7, 9, 9, 9};
  std::vector<int32_t> offsets = {3, 4, 0, 1, 2};
  Dropout dropout{0.4F, 11};
  int64_t count() const { return static_cast<int64_t>(sequences.size()); }
  RowDropout of(int64_t width, bool active = true) {
    Batch batch;
    batch.sequence_ids = Tensor(sequences.data(), DType::i64, {count()});
    batch.sequence_offsets = Tensor(offsets.data(), DType::i32, {count()});
    return {active ? dropout : Dropout(), batch, width};
  }
  float expected(int64_t width, int64_t row, int64_t channel) const {
    const auto r = static_cast<size_t>(row);
    return dropout.scale(static_cast<uint64_t>(sequences[r]), static_cast<uint64_t>(offsets[r] * width + channel));
  }
};

TEST(RowDropout, NeighboursInARow) {
  Rows rows;
  for (const float probability : {0x1p-33F, 0.1F, 0.9F}) {
    rows.dropout.probability = probability;
    EXPECT_EQ(rows.of(4).scale(1, 2), rows.expected(4, 1, 2)) << probability;
  }
  rows.dropout.probability = 0.4F;
  for (const int64_t width : {4, 6, 7, 16, 30}) {
    const RowDropout dropout = rows.of(width);
    for (int64_t row = 0; row < rows.count(); ++row) {
      for (int64_t channel = 0; channel < width; ++channel) {
        const auto factors = dropout.scales<8>(row, channel);
        for (int64_t k = 0; k < 8; ++k) {
          EXPECT_EQ(factors.v[k], rows.expected(width, row, channel + k)) << width << ' ' << row << ' ' << channel;
        }
      }
    }
  }
  for (const float factor : rows.of(16, false).scales<4>(1, 4).v) EXPECT_EQ(factor, 1.0F);
}

TEST(RowDropout, NeighboursThatGoOnInTheNextRows) {
  Rows rows;
  for (const int64_t width : {3, 4, 6, 7, 16}) {
    const RowDropout dropout = rows.of(width);
    const int64_t elements = rows.count() * width;
    for (int64_t i = 0; i < elements; ++i) {
      const auto factors = dropout.scales_at<8>(i, elements);
      for (int64_t k = 0; k < 8 && i + k < elements; ++k) {
        EXPECT_EQ(factors.v[k], rows.expected(width, (i + k) / width, (i + k) % width)) << width << ' ' << i;
      }
    }
  }
}

}  // namespace
}  // namespace llmtrain::cuda
