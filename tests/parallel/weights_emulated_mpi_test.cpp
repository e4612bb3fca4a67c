// When the stream of the model waits for weights that travel.
#include <gtest/gtest.h>

#include <vector>

#include "emulator/emulator.hpp"
#include "harness/harness.hpp"
#include "parallel/param_store.hpp"
#include "parallel/planned_memory.hpp"
#include "parallel/toy_model.hpp"

namespace llmtrain {
namespace {

using test::communicator;
using test::stream;

// Of the last unit the first ones do not wait; nor do they of an update, which must wait for all.
TEST(WholeWeights, AreWaitedForWhereTheyAreUsed) {
  if (communicator().size() == 1 || !communicator().note().empty()) GTEST_SKIP() << "nothing travels between GPUs";
  ParamStoreOptions options;
  options.compute = DType::bf16;
  options.zero_stage = 1;
  options.rank = communicator().rank();
  options.size = communicator().size();
  ParamStore store(test::toy_units(true), options);
  Arena arena;
  store.plan(arena);
  const PlannedMemory memory(arena, communicator());
  store.start(communicator(), stream());
  store.initialize(1);
  const auto arrived_with = [&](int unit) {
    store.acquire(unit);
    stream().synchronize();
    store.release(unit);
    return emulator::counts().transfers;
  };
  const int last = store.unit_count() - 1;
  for (int publication = 0; publication < 2; ++publication) {
    const int64_t with_first = arrived_with(0);
    EXPECT_EQ(arrived_with(last), with_first + 1);
    EXPECT_EQ(arrived_with(1), with_first + 1);
    store.publish_weights();
  }
  store.round_masters();
  const int64_t with_update = arrived_with(0);
  EXPECT_EQ(arrived_with(last), with_update);
}

}  // namespace
}  // namespace llmtrain
