// The emulated cp.async detects threads that do not wait, and those that overwrite data that is still read.

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/cuda/copy_async.cuh"
#include "kernels/kernel_test.hpp"

namespace llmtrain::cuda {
namespace {

struct Copy {
  static constexpr int threads = warp_lanes;
  const float* from;
  float* to;
  bool waits, wanted;
  void operator()() const {
    auto* shared = dynamic_shared<float>();
    copy_async<sizeof(float)>(shared + threadIdx.x, from + threadIdx.x, wanted);
    if (waits) wait_for_copies();
    __syncthreads();
    to[threadIdx.x] = shared[threadIdx.x ^ 1];  // another thread's
    __syncthreads();
    wait_for_copies();
  }
};

TEST(CopyAsync, IsThereAfterTheWaitAndNotBefore) {
  const test::Values numbers = test::random_values(warp_lanes, 1);
  const test::Array from(DType::f32, {warp_lanes}, numbers), to(DType::f32, {warp_lanes});
  const auto copied = [&](bool waits, bool wanted) {
    launch({1}, test::stream(), Copy{from.tensor().as<float>(), to.tensor().as<float>(), waits, wanted},
           warp_lanes * static_cast<int>(sizeof(float)));
    return to.values();
  };
  test::Values expected = from.values();
  for (size_t i = 0; i < expected.size(); i += 2) std::swap(expected[i], expected[i + 1]);
  EXPECT_EQ(copied(true, true), expected);
  EXPECT_EQ(copied(true, false), test::Values(warp_lanes, 0.0));
  for (const double x : copied(false, true)) EXPECT_TRUE(std::isnan(x));
}

}  // namespace
}  // namespace llmtrain::cuda
