#include "kernels/head_groups.hpp"

#include <gtest/gtest.h>

#include "kernels/kernel_test.hpp"

namespace llmtrain {
namespace {

using test::Array;
using test::stream;
using test::Values;

// One query head for each key head (GPT-NeoX), and several (Falcon); the way back gives the same rows.
TEST(HeadGroups, AreTakenApartAndJoined) {
  constexpr int64_t rows = 3, width = 2;
  const auto check = [](int64_t heads, int64_t keys, const std::vector<int64_t>& grouped) {
    const AttentionShape shape{heads, keys, width};
    const int64_t columns = (heads + 2 * keys) * width;
    const Values values = test::random_integers(rows * columns, 1, 20);
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      Array groups(dtype, {rows, columns}, values), qkv(dtype, {rows, columns}), back(dtype, {rows, columns});
      ungroup_heads(qkv, groups, shape, stream());
      const Values found = qkv.values();
      for (int64_t i = 0; i < rows * columns; ++i) {
        const int64_t head = i % columns / width;
        const int64_t from = i / columns * columns + grouped[static_cast<size_t>(head)] * width + i % width;
        EXPECT_EQ(found[static_cast<size_t>(i)], values[static_cast<size_t>(from)]) << i;
      }
      group_heads(back, qkv, shape, stream());
      EXPECT_EQ(back.values(), values);
      EXPECT_NE(found, values) << "control";
      EXPECT_THROW(group_heads(back, qkv, {heads, keys, width + 1}, stream()), Error);
    }
  };
  check(3, 3, {0, 3, 6, 1, 4, 7, 2, 5, 8});
  check(4, 2, {0, 1, 4, 5, 2, 6, 3, 7});
}

}  // namespace
}  // namespace llmtrain
