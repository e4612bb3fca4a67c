#include "kernels/embedding.hpp"

#include <gtest/gtest.h>

#include <tuple>

#include "harness/dtype_text.hpp"
#include "kernels/kernel_test.hpp"

namespace llmtrain {
namespace {

using test::Array;
using test::Bytes;
using test::TestBatch;
using test::Values;

constexpr int64_t rows = 50, length = 17, vocabulary = 11;
constexpr float scale = 6;  // sums of whole numbers stay exact

class Embedding : public testing::TestWithParam<std::tuple<DType, bool, bool, int64_t>> {
 protected:
  Embedding() {
    const auto& [dtype, with_positions, with_dropout, w] = GetParam();
    width = w;
    table = Array(dtype, {vocabulary, width}, test::random_values(vocabulary * width, 1));
    if (with_positions) position_table = Array(dtype, {length, width}, test::random_values(length * width, 2));
    if (with_dropout) dropout = {0.25f, 77};
  }
  double factor(int64_t row, int64_t column) const {
    if (!dropout.active()) return 1;
    return static_cast<double>(
        dropout.scale(TestBatch::sequence(row, length), static_cast<uint64_t>(row % length * width + column)));
  }

  int64_t width = 0;
  Array table, position_table;
  Dropout dropout;
  TestBatch batch{rows, length, vocabulary, 3};
};

TEST_P(Embedding, GathersRows) {
  const Array x(DType::f32, {rows, width});
  embedding_forward(x, table, position_table, scale, batch, dropout, test::stream());
  const Values tokens = table.values(), ids = batch.ids(), positions = batch.positions();
  const Values places = position_table.tensor().empty() ? Values() : position_table.values();
  Values expected;
  for (int64_t r = 0; r < rows; ++r) {
    const auto id = static_cast<int64_t>(ids[static_cast<size_t>(r)]);
    const auto position = static_cast<int64_t>(positions[static_cast<size_t>(r)]);
    for (int64_t c = 0; c < width; ++c) {
      double v = double{scale} * tokens[static_cast<size_t>(id * width + c)];
      if (!places.empty()) v += places[static_cast<size_t>(position * width + c)];
      expected.push_back(v * factor(r, c));
    }
  }
  test::expect_close(x.values(), expected, [&](size_t i) { return 2 * 0x1p-24 * (std::fabs(expected[i]) + 8); });
}

TEST_P(Embedding, ScattersGradients) {
  // Whole numbers and factors of 0 or 4/3: sums are exact without dropout.
  const Array dx(DType::f32, {rows, width}, test::random_integers(rows * width, 4, 100));
  const Array dtable(DType::f32, {vocabulary, width}, Values(static_cast<size_t>(vocabulary * width), 5.0));
  Array dposition;
  if (!position_table.tensor().empty()) {
    dposition = Array(DType::f32, {length, width}, Values(static_cast<size_t>(length * width), 7.0));
  }
  embedding_backward(dtable, dposition, dx, scale, batch, dropout, test::stream());
  const Values d = dx.values(), ids = batch.ids(), positions = batch.positions();
  Values by_token(static_cast<size_t>(vocabulary * width), 5.0), by_position(static_cast<size_t>(length * width), 7.0);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < width; ++c) {
      const double v = d[static_cast<size_t>(r * width + c)] * factor(r, c);
      by_token[static_cast<size_t>(static_cast<int64_t>(ids[static_cast<size_t>(r)]) * width + c)] += v * double{scale};
      by_position[static_cast<size_t>(static_cast<int64_t>(positions[static_cast<size_t>(r)]) * width + c)] += v;
    }
  }
  const auto bound = [&](size_t) { return dropout.active() ? 1e-3 : 0.0; };
  test::expect_close(dtable.values(), by_token, bound, "tokens");
  if (!dposition.tensor().empty()) test::expect_close(dposition.values(), by_position, bound, "positions");
}

TEST_P(Embedding, BitsDoNotDependOnThreads) {
  test::expect_same_bits_for_threads([&](bool changed) {
    const Array x(DType::f32, {rows, width});
    embedding_forward(x, table, position_table, 1, batch, dropout, test::stream());
    const Array dx(DType::f32, {rows, width}, test::random_values(rows * width, changed ? 5 : 6));
    const Array dtable(DType::f32, {vocabulary, width}), dposition(DType::f32, {length, width});
    embedding_backward(dtable, dposition, dx, 1, batch, dropout, test::stream());
    Bytes all = x.bytes();
    for (const Array* a : {&dtable, &dposition}) {
      const Bytes more = a->bytes();
      all.insert(all.end(), more.begin(), more.end());
    }
    return all;
  });
}

INSTANTIATE_TEST_SUITE_P(All, Embedding,
                         testing::Combine(testing::Values(DType::f32, DType::bf16, DType::f16), testing::Bool(),
                                          testing::Bool(), testing::Values(3, 64, 301)));

class EmbeddingOrder : public testing::TestWithParam<int64_t> {};

TEST_P(EmbeddingOrder, RowsAreAddedInTheOrderOfTheBatch) {
  constexpr int64_t ids = 3, width = 5;  // many rows of each id
  const int64_t count = GetParam();
  const TestBatch batch(count, length, ids, 3);
  const Array dx(DType::f32, {count, width}, test::random_values(count * width, 4)), dtable(DType::f32, {ids, width});
  embedding_backward(dtable, Tensor(), dx, 1, batch, {}, test::stream());
  const Values d = dx.values(), row_ids = batch.ids();
  const auto sums = [&](bool in_order) {
    std::vector<float> sum(static_cast<size_t>(ids * width));
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = in_order ? i : count - 1 - i, id = static_cast<int64_t>(row_ids[static_cast<size_t>(row)]);
      for (int64_t c = 0; c < width; ++c) {
        sum[static_cast<size_t>(id * width + c)] += static_cast<float>(d[static_cast<size_t>(row * width + c)]);
      }
    }
    return Values(sum.begin(), sum.end());
  };
  EXPECT_EQ(dtable.values(), sums(true));
  EXPECT_NE(dtable.values(), sums(false)) << "control";
}

// A GPU sorts runs of 512 rows and merges them: tests one row, a full run, several runs and a partial one.
INSTANTIATE_TEST_SUITE_P(Rows, EmbeddingOrder, testing::Values(50, 512, 513, 1700));

TEST(EmbeddingIds, EveryRowOfManyIdsArrives) {
  constexpr int64_t many = 2500, ids = 4000, width = 3;
  const TestBatch batch(many, 100, ids, 5);
  const Array dx(DType::f32, {many, width}, test::random_integers(many * width, 4, 100));
  const Array dtable(DType::f32, {ids, width});
  embedding_backward(dtable, Tensor(), dx, 1, batch, {}, test::stream());
  const Values d = dx.values(), row_ids = batch.ids();
  Values expected(static_cast<size_t>(ids * width));
  for (size_t i = 0; i < d.size(); ++i) expected[static_cast<size_t>(row_ids[i / 3]) * 3 + i % 3] += d[i];
  EXPECT_EQ(dtable.values(), expected);
  const auto padding = static_cast<int64_t>(row_ids[7]);
  const Array rest(DType::f32, {ids, width});
  embedding_backward(rest, Tensor(), dx, 1, batch, {}, test::stream(), static_cast<int32_t>(padding));
  EXPECT_NE(rest.values(), expected) << "control";
  std::fill_n(expected.begin() + padding * width, width, 0.0);
  EXPECT_EQ(rest.values(), expected);
}

// Blocks of the table's rows give together what the table gives, and get what it gets.
TEST(EmbeddingBlocks, AreTheTable) {
  constexpr int64_t width = 21, cut = 5;
  const TestBatch batch(rows, length, vocabulary, 3);
  const Array table(DType::bf16, {vocabulary, width}, test::random_values(vocabulary * width, 1));
  const Array x(DType::f32, {rows, width}), whole(DType::f32, {rows, width});
  const Array dx(DType::f32, {rows, width}, test::random_values(rows * width, 2));
  const Array dtable(DType::f32, {vocabulary, width}), dblocks(DType::f32, {vocabulary, width});
  const Dropout dropout{0.25f, 77};
  const TestBatch& b = batch;
  embedding_forward(whole, table, {}, scale, b, {}, test::stream());
  embedding_backward(dtable, {}, dx, scale, b, dropout, test::stream(), 2);
  for (const auto& [first, count] : {std::pair(int64_t{0}, cut), {cut, vocabulary - cut}}) {
    add_table_rows(x, table.tensor().rows(first, count), first, static_cast<const Batch&>(b).ids, scale,
                   test::stream());
    EXPECT_EQ(x.values() == whole.values(), first > 0) << "control: one block alone";
    embedding_backward(dblocks.tensor().rows(first, count), {}, dx, scale, b, dropout, test::stream(), 2, first);
  }
  EXPECT_EQ(x.values(), whole.values());
  EXPECT_EQ(dblocks.values(), dtable.values());
}

}  // namespace
}  // namespace llmtrain
