// With LLMTRAIN_NCCL=always a job of one rank uses NCCL, which can so be tried on one GPU.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <numeric>
#include <optional>
#include <vector>

#include "core/error.hpp"
#include "emulator/emulator.hpp"
#include "harness/harness.hpp"
#include "parallel/communicator.hpp"

namespace llmtrain {
namespace {

using test::stream;

class NcclOfOneRank : public testing::Test {
 protected:
  void SetUp() override {
    if (test::communicator().size() > 1) GTEST_SKIP() << "several ranks have NCCL anyway";
  }
  void TearDown() override { unsetenv("LLMTRAIN_NCCL"); }

  /// Number of NCCL's transfers of a communicator's start, an all-gather, an exchange and a sum, which leave all
  /// values.
  static int64_t transfers(const char* wanted) {
    setenv("LLMTRAIN_NCCL", wanted, 1);
    const int64_t before = emulator::counts().transfers;
    const std::unique_ptr<Communicator> communicator = make_communicator();
    std::vector<int64_t> values(512);
    std::iota(values.begin(), values.end(), int64_t{1} << 40);
    const DeviceBuffer memory(4096);
    const Tensor integers(memory.data(), DType::i64, {512});
    copy_to_device(integers.data, values.data(), integers.bytes(), stream());
    const std::vector<int64_t> borders = {0, 512};
    communicator->all_gather(integers, borders, stream()).finish(stream());
    const std::vector<Tensor> received(1);
    const std::vector<uint8_t> contributes = {1};
    communicator->exchange_shards(integers, borders, received, contributes, stream()).finish(stream());
    EXPECT_TRUE(communicator->sums_on_device());
    communicator->sum_on_device(integers, stream()).finish(stream());
    std::vector<int64_t> after(values.size());
    copy_to_host(after.data(), integers.data, integers.bytes(), stream());
    stream().synchronize();
    EXPECT_EQ(after, values);
    return emulator::counts().transfers - before;
  }
};

TEST_F(NcclOfOneRank, RunsEveryTransfer) {
  EXPECT_EQ(transfers("always"), 8) << "6 of the start, the all-gather and the sum; an exchange has no peers";
  EXPECT_EQ(transfers("auto"), 0) << "control";
}

TEST_F(NcclOfOneRank, OtherWordsAreRefused) {
  setenv("LLMTRAIN_NCCL", "on", 1);
  try {
    make_communicator();
    ADD_FAILURE() << "no error";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::command_line);
    EXPECT_THAT(error.what(), testing::HasSubstr("LLMTRAIN_NCCL is 'on': it must be auto or always"));
  }
}

}  // namespace
}  // namespace llmtrain
