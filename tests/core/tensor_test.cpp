#include "core/tensor.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "core/error.hpp"

namespace llmtrain {
namespace {

TEST(Tensor, CountsElementsAndBytes) {
  const Tensor t(nullptr, DType::bf16, {3, 5, 7, 2});
  EXPECT_EQ(t.rank, 4);
  EXPECT_EQ(t.dim(2), 7);
  EXPECT_EQ(t.numel(), 210);
  EXPECT_EQ(t.bytes(), 420);
  EXPECT_TRUE(t.empty());

  const Tensor scalar(nullptr, DType::f64, {});
  EXPECT_EQ(scalar.numel(), 1);
  EXPECT_EQ(scalar.bytes(), 8);

  const Tensor nothing(nullptr, DType::f32, {0, 5});
  EXPECT_EQ(nothing.numel(), 0);
  EXPECT_EQ(nothing.bytes(), 0);
}

TEST(Tensor, CountsBeyond32Bits) {
  const Tensor t(nullptr, DType::f32, {int64_t{1} << 20, int64_t{1} << 16});
  EXPECT_EQ(t.numel(), int64_t{1} << 36);
  EXPECT_EQ(t.bytes(), int64_t{1} << 38);
}

TEST(Tensor, HasAtMostFourDimensions) { EXPECT_THROW(Tensor(nullptr, DType::f32, {1, 2, 3, 4, 5}), Error); }

TEST(Tensor, RowsAreARangeOfTheFirstDimension) {
  std::vector<int32_t> data(4 * 3 * 2);
  std::iota(data.begin(), data.end(), 0);
  const Tensor t(data.data(), DType::i32, {4, 3, 2});
  const Tensor part = t.rows(1, 2);
  EXPECT_EQ(part.shape, (std::array<int64_t, 4>{2, 3, 2, 0}));
  EXPECT_EQ(part.as<int32_t>(), data.data() + 6);
  EXPECT_EQ(part.as<int32_t>()[11], 17);
  EXPECT_EQ(part.rows(1, 1).as<int32_t>()[0], 12);
  EXPECT_EQ(t.rows(4, 0).numel(), 0);
  EXPECT_EQ(t.dim(0), 4) << "the original is unchanged";

  std::vector<bf16> halves(10);
  EXPECT_EQ(Tensor(halves.data(), DType::bf16, {10}).rows(3, 2).as<bf16>(), halves.data() + 3);
}

TEST(Tensor, TypedAccessWantsItsOwnType) {
  std::vector<float> data(6);
  const Tensor t(data.data(), DType::f32, {6});
  EXPECT_EQ(t.as<float>(), data.data());
  EXPECT_THROW(t.as<int32_t>(), Error);
  EXPECT_THROW(t.as<double>(), Error);
  EXPECT_THROW(t.as<bf16>(), Error);
  EXPECT_THROW(t.as<uint8_t>(), Error);

  std::vector<uint8_t> bytes(6);
  EXPECT_EQ(Tensor(bytes.data(), DType::u8, {6}).as<uint8_t>(), bytes.data());
}

TEST(Tensor, ReshapeKeepsTheElements) {
  std::vector<float> data(24);
  const Tensor t(data.data(), DType::f32, {4, 6});
  const Tensor other = t.reshaped({2, 3, 4});
  EXPECT_EQ(other.rank, 3);
  EXPECT_EQ(other.dim(2), 4);
  EXPECT_EQ(other.as<float>(), data.data());
  EXPECT_EQ(other.dtype, DType::f32);
  EXPECT_THROW(t.reshaped({5, 5}), Error);
}

}  // namespace
}  // namespace llmtrain
