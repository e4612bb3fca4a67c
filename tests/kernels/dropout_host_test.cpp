// Dropout factors of many elements at once equal those of single elements.

#include <gtest/gtest.h>

#include "kernels/host/dropout_row.hpp"

namespace llmtrain {
namespace {

TEST(DropoutRow, HasTheBitsOfOneElementAfterTheOther) {
  for (const float probability : {1e-9f, 0.1f, 0.5f, 0.999f}) {
    const Dropout dropout{probability, 77};
    host::DropoutRow row(dropout);
    constexpr uint64_t carry = uint64_t{1} << 34;  // four elements per evaluation, whose number passes 2^32 here
    for (const uint64_t first : {uint64_t{0}, uint64_t{3}, uint64_t{1022}, carry - 30, carry - 3, carry, carry << 20}) {
      for (const int64_t count : {1, 5, 64, 256}) {
        const float* factors = row.factors(uint64_t{1} << 40 | 5, first, count);
        for (int64_t i = 0; i < count; ++i) {
          ASSERT_EQ(factors[i], dropout.scale(uint64_t{1} << 40 | 5, first + static_cast<uint64_t>(i)))
              << probability << ' ' << first << ' ' << i;
        }
      }
    }
  }
}

TEST(DropoutThreshold, IsTheFirstWordThatIsKept) {
  for (const float p : {0x1p-40f, 0x1p-33f, 0x1.8p-32f, 0x1p-31f, 0.1f, 0.3f, 0.5f, 0.75f, 0x1.fffffep-1f}) {
    const uint32_t border = Dropout{p, 0}.threshold();
    EXPECT_GE(random_uniform(border), p);
    if (border > 0) {
      EXPECT_LT(random_uniform(border - 1), p);
    }
  }
}

}  // namespace
}  // namespace llmtrain
