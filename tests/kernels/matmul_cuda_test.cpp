// tf32, which only GPUs have.

#include "kernels/kernel_test.hpp"
#include "kernels/matmul.hpp"

namespace llmtrain {
namespace {

using test::Array;
using test::Values;

constexpr int64_t size = 32;

/// Of a matrix of one number with a matrix of ones: size times that number.
Values product(DType type, double number) {
  const Array x(type, {size, size}, Values(size * size, number)), w(type, {size, size}, Values(size * size, 1));
  const Array y(DType::f32, {size, size});
  linear_forward(y, x, w, {}, test::stream());
  return y.values();
}

TEST(Tf32, RoundsOperandsToTenBitsWhileItIsWanted) {
  const double fine = 1 + 0x1p-10 + 0x1p-12, coarse = 1 + 0x1p-10;
  const Values exact(size * size, size * fine);
  EXPECT_EQ(product(DType::f32, fine), exact);
  EXPECT_TRUE(use_tf32(true));
  const Values rounded = product(DType::f32, fine), kept = product(DType::f32, coarse);
  EXPECT_TRUE(use_tf32(false));
  EXPECT_NE(rounded, exact) << "control: 12 bits";
  test::expect_close(
      rounded, exact, [&](size_t i) { return 0x1p-10 * exact[i]; }, "to 10 bits");
  EXPECT_EQ(kept, Values(size * size, size * coarse)) << "10 bits are enough";
  EXPECT_EQ(product(DType::f32, fine), exact) << "and back";
}

TEST(Tf32, LeavesOtherTypesAlone) {
  for (const DType type : {DType::bf16, DType::f16}) {
    const Values before = product(type, 1.25);
    use_tf32(true);
    EXPECT_EQ(product(type, 1.25), before) << name_of(type);
    use_tf32(false);
    EXPECT_EQ(before, Values(size * size, size * 1.25));
  }
}

}  // namespace
}  // namespace llmtrain
