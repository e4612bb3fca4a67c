#include "kernels/key_copies.hpp"

#include <gtest/gtest.h>

#include "kernels/kernel_test.hpp"

namespace llmtrain {
namespace {

using test::Array;
using test::stream;
using test::Values;

// Copies of integers add up to multiples; unlike terms show the order of the additions.
TEST(KeyCopies, AreMadeAndAdded) {
  constexpr int64_t rows = 5, heads = 6, keys = 2, width = 3, copies = 4;
  constexpr int64_t narrow_columns = (heads + 2 * keys) * width, wide_columns = (heads + 2 * keys * copies) * width;
  const AttentionShape shape{heads, keys, width};
  const Values values = test::random_integers(rows * narrow_columns, 1, 20);
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    Array narrow(dtype, {rows, narrow_columns}, values), wide(dtype, {rows, wide_columns});
    copy_key_heads(wide, narrow, shape, copies, stream());
    const Values found = wide.values();
    const auto at = [&](int64_t row, int64_t head, int64_t element) {
      return values[static_cast<size_t>(row * narrow_columns + head * width + element)];
    };
    Values sums = values;
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t column = 0; column < wide_columns; ++column) {
        const int64_t head = column / width;
        const int64_t source = head < heads ? head : heads + (head - heads) / copies;
        EXPECT_EQ(found[static_cast<size_t>(row * wide_columns + column)], at(row, source, column % width));
      }
      for (int64_t column = heads * width; column < narrow_columns; ++column) {
        sums[static_cast<size_t>(row * narrow_columns + column)] *= copies;
      }
    }
    add_key_heads(narrow, wide, shape, copies, stream());
    EXPECT_EQ(narrow.values(), sums);
    EXPECT_THROW(add_key_heads(narrow, wide, shape, 2, stream()), Error);
  }
  // (1e8 + 1) + (-1e8 + 1) is 0 in fp32; from the left it would be 1.
  Array narrow(DType::f32, {1, 3}), wide(DType::f32, {1, 9}, {0, 1e8, 1, -1e8, 1, 1e8, 1, -1e8, 1});
  add_key_heads(narrow, wide, {1, 1, 1}, copies, stream());
  EXPECT_EQ(narrow.values(), (Values{0, 0, 0}));
}

}  // namespace
}  // namespace llmtrain
