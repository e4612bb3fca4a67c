// Times at which the model's stream waits for weights and gradients in transfer.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "emulator/cuda_runtime.h"
#include "emulator/emulator.hpp"
#include "harness/harness.hpp"
#include "kernels/elementwise.hpp"
#include "parallel/toy_model.hpp"
#include "params/param_store.hpp"
#include "params/planned_memory.hpp"

namespace llmtrain {
namespace {

using test::communicator;
using test::stream;

/// Number of transfers that have arrived once the model's stream has done its work. Nothing polls for them meanwhile,
/// as Stream::synchronize would if it took long.
int64_t arrived() {
  cudaStreamSynchronize(static_cast<cudaStream_t>(stream().native()));
  return emulator::counts().transfers;
}

class BetweenGpus : public testing::Test {
 protected:
  void SetUp() override {
    if (communicator().size() == 1 || !communicator().note().empty()) GTEST_SKIP() << "nothing travels between GPUs";
  }
};

/// A store with memory and weights.
struct Started {
  explicit Started(ParamStoreOptions options) : store(test::toy_units(true), with_ranks(std::move(options))) {
    store.plan(arena);
    memory.emplace(arena, communicator());
    store.start(communicator(), stream());
    store.initialize(1);
  }
  static ParamStoreOptions with_ranks(ParamStoreOptions options) {
    options.compute = DType::bf16;
    options.rank = communicator().rank();
    options.size = communicator().size();
    options.groups = options.size;
    return options;
  }
  int last() const { return store.units().size() - 1; }
  int64_t arrived_with(int unit) {
    store.acquire(unit);
    const int64_t count = arrived();
    store.release(unit);
    return count;
  }
  Arena arena;
  std::optional<PlannedMemory> memory;
  ParamStore store;
};

// The first units do not wait for the last one; nor for an update, which must wait for all.
TEST_F(BetweenGpus, WholeWeightsAreWaitedForWhereTheyAreUsed) {
  Started s({.zero_stage = 1});
  for (int publication = 0; publication < 2; ++publication) {
    const int64_t with_first = s.arrived_with(0);
    EXPECT_EQ(s.arrived_with(s.last()), with_first + 1);
    EXPECT_EQ(s.arrived_with(1), with_first + 1);
    s.store.publish_weights();
  }
  s.store.round_masters();
  const int64_t with_update = s.arrived_with(0);
  EXPECT_EQ(s.arrived_with(s.last()), with_update);
}

// Also for units that the host updates last.
TEST_F(BetweenGpus, WeightsOfTheNextUnitTravelUnderThisOne) {
  for (const Offload place : {Offload::none, Offload::cpu}) {
    SCOPED_TRACE(name_of(place));
    Started s({.zero_stage = 3, .offload_optimizer = place});
    for (int update = 0; update < 2; ++update) {
      s.store.update([](int, const ParamStore::Shard&) {});
      const int64_t before = arrived();
      for (int u = 0; u <= s.last(); ++u) {
        s.store.acquire(u);
        if (u < s.last()) s.store.prefetch(u + 1);
        EXPECT_EQ(arrived(), before + u + 1) << "unit " << u;
        s.store.release(u);
      }
    }
  }
}

// NCCL runs transfers one after the other: the previous one has arrived if a reduction has started.
TEST_F(BetweenGpus, GradientsTravelUnderTheWorkOfTheNextUnit) {
  for (const int stage : {1, 2, 3}) {
    SCOPED_TRACE(testing::Message() << "stage " << stage);
    Started s({.zero_stage = stage});
    for (int u = 0; u <= s.last(); ++u) s.arrived_with(u);
    for (int step = 0; step < 2; ++step) {
      const int64_t before = arrived();
      s.store.reducer().begin_step(communicator().size());
      s.store.reducer().begin_round(0);
      int64_t begun = 0;
      for (int u = s.last(); u >= 0; --u) {
        for (size_t p = 0; p < s.store.units()[u].spec.params.size(); ++p) {
          fill(s.store.gradient(u, static_cast<int>(p)), 1, stream());
        }
        EXPECT_EQ(arrived(), before + std::max<int64_t>(begun - 1, 0)) << "work on unit " << u;
        s.store.reduce(u);
        EXPECT_EQ(arrived(), before + begun++) << "reduction of unit " << u;
      }
      s.store.reducer().finish();
      EXPECT_EQ(arrived(), before + begun);
    }
  }
}

}  // namespace
}  // namespace llmtrain
