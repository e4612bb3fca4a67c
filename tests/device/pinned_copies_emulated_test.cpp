// The host waits once for all copies of a micro-batch, and memory in flight is not reused.
#include <gtest/gtest.h>

#include "device/pinned_copies.hpp"
#include "emulator/emulator.hpp"

namespace llmtrain {
namespace {

TEST(PinnedCopies, WaitOnceForAMicroBatch) {
  constexpr int64_t n = 100;
  Stream stream;
  const DeviceBuffer memory(2 * n * 4);
  const Tensor first(memory.data(), DType::f32, {n}), second = Tensor(first.as<float>() + n, DType::f32, {n});
  PinnedCopies copies;
  std::vector<float> values(static_cast<size_t>(n), 0.0F), of_first, of_second, none{1};
  for (int batch = 0; batch < 3; ++batch) {
    const emulator::Counts before = emulator::counts();
    for (const Tensor& to : {first, second, first}) {
      for (float& value : values) value += 1;
      copies.upload(to, values.data(), stream);  // the values change before the stream runs
    }
    copies.fetch(of_first, first, n, stream);
    copies.fetch(of_second, second, n - 1, stream);
    copies.fetch(none, Tensor(), n, stream);
    copies.finish(stream);
    const emulator::Counts after = emulator::counts();
    EXPECT_LE(after.synchronizations - before.synchronizations, 1);
    EXPECT_EQ(after.pageable_copies - before.pageable_copies, 0);
    EXPECT_EQ(of_first, std::vector<float>(static_cast<size_t>(n), static_cast<float>(3 * batch + 3)));
    EXPECT_EQ(of_second, std::vector<float>(static_cast<size_t>(n - 1), static_cast<float>(3 * batch + 2)));
    EXPECT_TRUE(none.empty());
  }
  const emulator::Counts before = emulator::counts();
  copy_to_host(values.data(), first.data, first.bytes(), stream);
  EXPECT_EQ(emulator::counts().pageable_copies - before.pageable_copies, 1) << "control: pageable memory";
}

}  // namespace
}  // namespace llmtrain
