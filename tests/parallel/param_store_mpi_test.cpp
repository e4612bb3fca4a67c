#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <optional>
#include <thread>
#include <tuple>
#include <utility>

#include "core/activity.hpp"
#include "core/error.hpp"
#include "harness/whole_parameters.hpp"
#include "kernels/elementwise.hpp"
#include "parallel/toy_trainer.hpp"
#include "params/param_store.hpp"
#include "params/planned_memory.hpp"

namespace llmtrain {
namespace {

using test::communicator;
using test::different_bits;
using test::Parameters;
using test::stream;
using test::toy_reference;
using test::ToyResult;
using test::ToyRun;
using test::ToyTrainer;
using test::Values;

ToyResult toy_train(const ToyRun& run, DType compute, int stage) { return ToyTrainer(run, compute, stage).train(); }

/// The reference is the same for all stages and dtypes.
const Parameters& reference_of(const ToyRun& run) {
  static std::map<std::tuple<bool, int64_t, int64_t, int64_t, bool>, Parameters> known;
  Parameters& p = known[{run.tied, run.groups, run.blocks, run.micro_batches, run.tree}];
  if (p.empty()) p = toy_reference(run);
  return p;
}

/// tied, groups, blocks, micro-batches per group
using Setting = std::tuple<bool, int64_t, int64_t, int64_t>;
class ParamStoreRanks : public testing::TestWithParam<Setting> {};

TEST_P(ParamStoreRanks, EveryStageAndDtypeEqualsTheSerialFoldInEveryBit) {
  const auto [tied, groups, blocks, micro_batches] = GetParam();
  if (blocks > groups) GTEST_SKIP() << "a block has at least one group";
  const ToyRun run{.tied = tied, .groups = groups, .blocks = blocks, .micro_batches = micro_batches};
  for (const DType compute : {DType::f32, DType::bf16}) {
    for (int stage = 0; stage <= 3; ++stage) {
      const ToyResult result = toy_train(run, compute, stage);
      const std::string where = "stage " + std::to_string(stage) + ", " + std::string(name_of(compute));
      EXPECT_EQ(different_bits(result.parameters, reference_of(run)), 0) << where;
      EXPECT_EQ(result.wrong_weights, 0) << where;
      EXPECT_EQ(result.dirty_padding, 0) << where;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Settings, ParamStoreRanks,
                         testing::Combine(testing::Bool(), testing::Values(1, 2, 3, 5, 8), testing::Values(1, 2),
                                          testing::Values(1, 2)));

TEST(ParamStoreOffload, EveryStageAndDtypeEqualsTheSerialFoldInEveryBit) {
  const ToyRun run{.groups = 3, .blocks = 2, .steps = 3};
  const Parameters reference = toy_reference(run);
  std::vector<Offload> places = {Offload::nvme};
  if (!device_memory_is_host()) places.push_back(Offload::cpu);
  for (const Offload place : places) {
    for (const auto& [optimizer, parameters, first_stage] :
         {std::tuple(place, Offload::none, 0), {place, place, 3}, {Offload::none, place, 3}}) {
      for (const DType compute : {DType::f32, DType::bf16}) {
        for (int stage = first_stage; stage <= 3; ++stage) {
          for (const bool unread : {false, true}) {
            const ToyResult result = ToyTrainer(run, compute, stage, {optimizer, parameters, unread}).train();
            const std::string where = "stage " + std::to_string(stage) + ", " + std::string(name_of(compute)) + ", " +
                                      std::string(name_of(optimizer)) + ", " + std::string(name_of(parameters)) +
                                      (unread ? ", unread" : "");
            EXPECT_EQ(different_bits(result.parameters, reference), 0) << where;
            EXPECT_EQ(result.wrong_weights, 0) << where;
            EXPECT_EQ(result.dirty_padding, 0) << where;
          }
        }
      }
    }
  }
}

// Large units are exchanged and updated in segments, which must not show; the serial fold knows nothing of them.
TEST(ParamStoreSegments, EveryStageDtypeAndOffloadEqualsTheSerialFoldInEveryBit) {
  const Offload none = Offload::none, disk = Offload::nvme;
  for (const bool tied : {true, false}) {
    const DType compute = tied ? DType::bf16 : DType::f32;
    for (const auto& [groups, micro_batches] : {std::pair(5, 1), {tied ? 3 : 1, 2}}) {
      const ToyRun run{.tied = tied, .groups = groups, .blocks = (groups + 1) / 2, .micro_batches = micro_batches};
      const Parameters reference = toy_reference(run);
      for (const auto& [optimizer, parameters] : {std::pair(none, none), {disk, none}, {disk, disk}}) {
        for (int stage = parameters == disk ? 3 : 0; stage <= 3; ++stage) {
          const test::ToyOffload offload{optimizer, parameters, !tied};
          const ToyResult result = ToyTrainer(run, compute, stage, offload, optimizer == none ? 700 : 1500).train();
          const std::string where = "stage " + std::to_string(stage) + ", groups " + std::to_string(groups) + ", " +
                                    std::string(name_of(optimizer));
          EXPECT_EQ(different_bits(result.parameters, reference), 0) << where;
          EXPECT_EQ(result.wrong_weights, 0) << where;
          EXPECT_EQ(result.dirty_padding, 0) << where;
        }
      }
    }
  }
}

// Along the tree, in which ranks and nodes add what they have: with runs of several groups, groups that the ranks do
// not divide, short steps and segments.
class ParamStoreTree : public testing::TestWithParam<std::tuple<int64_t, int64_t>> {};

TEST_P(ParamStoreTree, EveryStageEqualsTheSerialFoldInEveryBit) {
  const auto [groups, micro_batches] = GetParam();
  for (const bool tied : {true, false}) {
    const ToyRun run{.tied = tied, .groups = groups, .tree = true, .micro_batches = micro_batches};
    for (int stage = 0; stage <= 3; ++stage) {
      const DType compute = tied ? DType::bf16 : DType::f32;
      const int64_t segment = tied ? default_segment_elements : 700;
      const ToyResult result = ToyTrainer(run, compute, stage, {}, segment).train();
      const std::string where = "stage " + std::to_string(stage) + ", " + std::string(name_of(compute));
      EXPECT_EQ(different_bits(result.parameters, reference_of(run)), 0) << where;
      EXPECT_EQ(result.wrong_weights, 0) << where;
      EXPECT_EQ(result.dirty_padding, 0) << where;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Settings, ParamStoreTree,
                         testing::Values(std::tuple(1, 1), std::tuple(2, 2), std::tuple(3, 1), std::tuple(4, 1),
                                         std::tuple(5, 2), std::tuple(7, 1), std::tuple(12, 1), std::tuple(16, 1)));

TEST(ParamStoreTree, OffloadAddsInTheSameOrder) {
  const ToyRun run{.groups = 5, .tree = true, .steps = 3};
  for (int stage = 0; stage <= 3; ++stage) {
    const Offload weights = stage == 3 ? Offload::nvme : Offload::none;
    const ToyResult result = ToyTrainer(run, DType::bf16, stage, {Offload::nvme, weights, false}).train();
    EXPECT_EQ(different_bits(result.parameters, reference_of(run)), 0) << stage;
  }
}

TEST(ParamStoreControls, TheTreeShows) {
  const ToyRun tree{.groups = 5, .tree = true};
  for (int stage = 1; stage <= 2; ++stage) {
    const Parameters trained = toy_train(tree, DType::f32, stage).parameters;
    EXPECT_EQ(different_bits(trained, toy_reference(tree)), 0);
    EXPECT_GT(different_bits(trained, toy_reference({.groups = 5})), 100);
    EXPECT_GT(different_bits(trained, toy_reference({.groups = 4, .tree = true})), 100);
  }
}

// Controls: these errors must be detected.
TEST(ParamStoreControls, TheOrderOfGroupsAndTheirNumberShow) {
  const ToyRun run{.groups = 5};
  const Parameters trained = toy_train(run, DType::f32, 2).parameters;
  EXPECT_EQ(different_bits(trained, toy_reference(run)), 0);
  EXPECT_GT(different_bits(trained, toy_reference({.groups = 5, .reversed = true})), 100);
  EXPECT_GT(different_bits(trained, toy_reference({.groups = 4})), 100);
  EXPECT_GT(different_bits(trained, toy_reference({.groups = 5, .blocks = 2})), 100);
  EXPECT_GT(different_bits(trained, toy_reference({.groups = 5, .seed = 2})), 100);
}

TEST(ParamStoreControls, OneFlippedBitShows) {
  ToyRun flipped{.groups = 5};
  flipped.flipped_group = 3;
  const Parameters whole = toy_reference({.groups = 5}), hurt = toy_reference(flipped);
  for (int stage = 0; stage <= 3; ++stage) {
    const Parameters trained = toy_train(flipped, DType::f32, stage).parameters;
    EXPECT_EQ(different_bits(trained, whole), 1);
    EXPECT_EQ(different_bits(trained, hurt), 0);
  }
}

/// A store with memory, started.
struct Started {
  explicit Started(ParamStoreOptions options, std::vector<UnitSpec> units = test::toy_units(true),
                   Transfer::Meanwhile meanwhile = {})
      : store(std::move(units), with_ranks(std::move(options))) {
    store.plan(arena);
    memory.emplace(arena, communicator());
    store.start(communicator(), stream(), nullptr, std::move(meanwhile));
  }
  static ParamStoreOptions with_ranks(ParamStoreOptions options) {
    options.rank = communicator().rank();
    options.size = communicator().size();
    options.node_size = test::ranks_with_shared_memory();
    options.ranks_per_node = communicator().adding_ranks_per_node();
    return options;
  }
  Arena arena;
  std::optional<PlannedMemory> memory;
  ParamStore store;
};

// A rank that gathers weights of a frozen model reads the gradients that others offer: they wait for it before they
// gather.
TEST(ParamStoreGathers, AddSumsOfAnotherStore) {
  if (communicator().size() == 1) GTEST_SKIP() << "nothing is exchanged";
  Started trained({.zero_stage = 3, .groups = communicator().size()});
  Started frozen({.zero_stage = 3}, llmtrain::frozen(test::toy_units(true)),
                 [&] { trained.store.reducer().add_arrived(); });
  trained.store.initialize(1);
  frozen.store.initialize(1);
  GradientReducer& reducer = trained.store.reducer();
  reducer.begin_step(communicator().size());
  reducer.begin_round(0);
  reducer.begin_micro_batch(true, true);
  for (int unit = trained.store.units().size() - 1; unit >= 0; --unit) {
    for (size_t p = 0; p < trained.store.units()[unit].spec.params.size(); ++p) {
      const Tensor gradient = trained.store.gradient(unit, static_cast<int>(p));
      fill_zero(gradient.data, gradient.bytes(), stream());
    }
    // The last gradients are offered when rank 0 gathers already.
    if (unit == 0 && communicator().rank() != 0) std::this_thread::sleep_for(std::chrono::milliseconds(200));
    trained.store.reduce(unit);
  }
  const auto gather = [&] {
    frozen.store.acquire(0);
    frozen.store.release(0);
  };
  if (communicator().rank() == 0) gather();
  reducer.finish();
  if (communicator().rank() != 0) gather();
}

// If the host updates for a GPU, units behind the pass are not yet updated; each is updated once.
TEST(ParamStoreOffload, TheHostUpdatesUnitsAsTheyAreWanted) {
  for (const Offload place : {Offload::none, Offload::cpu, Offload::nvme}) {
    const bool late = place != Offload::none && !device_memory_is_host();
    Started s({.compute = DType::bf16, .offload_optimizer = place, .offload_path = testing::TempDir()});
    s.store.initialize(1);
    const int units = s.store.units().size();
    std::vector<int64_t> updated(static_cast<size_t>(units)), owned(updated);
    for (int u = 0; u < units; ++u) owned[static_cast<size_t>(u)] = s.store.shard(u, 0).end - s.store.shard(u, 0).begin;
    const auto use = [&](int unit) {
      s.store.acquire(unit);
      s.store.release(unit);
    };
    for (int step = 0; step < 2; ++step) {
      std::ranges::fill(updated, 0);
      s.store.update([&](int unit, const ParamStore::Shard& shard) {
        EXPECT_EQ(shard.on_host, late);
        updated[static_cast<size_t>(unit)] += shard.end - shard.begin;
      });
      EXPECT_EQ(updated == owned, !late) << name_of(place);
      use(1);
      EXPECT_EQ(updated[0], owned[0]);
      EXPECT_EQ(updated[1], owned[1]);
      EXPECT_EQ(updated[3], late ? 0 : owned[3]);
      if (step == 0) {
        use(units - 1);
      } else {
        s.store.finish_update();
      }
      EXPECT_EQ(updated, owned);
    }
  }
}

Values gathered(ParamStore& store, int unit, int param) {
  Values values(static_cast<size_t>(store.units()[unit].spec.params[static_cast<size_t>(param)].numel()));
  test::gather_parameter(store, unit, param, values.data());
  return values;
}

TEST(ParamStore, SendsARangeToRank0Alone) {
  for (const int stage : {0, 1, 3}) {
    Started started({.zero_stage = stage}, test::toy_units(false));
    started.store.initialize(1);
    constexpr int unit = 1;
    const int64_t elements = started.store.units()[unit].layout.elements();
    constexpr float nothing = 12345;
    Values values(static_cast<size_t>(elements), nothing);
    started.store.gather_range(unit, 0, elements, values.data());
    const UnitRange own = started.store.units().owned(unit, 0);
    for (int64_t i = 0; i < elements; ++i) {
      const bool mine = stage > 0 && own.begin <= i && i < own.end;
      ASSERT_EQ(values[static_cast<size_t>(i)] != nothing, communicator().rank() == 0 || mine)
          << "stage " << stage << ", element " << i;
    }
  }
}

std::vector<UnitSpec> initialized_units(bool fused) {
  const auto normal = Initializer::normal(0.5);
  const auto matrix = [&](std::string name, int64_t rows, std::vector<ParamSlice> slices) {
    return ParamSpec{std::move(name), rows, 37, true, normal, std::move(slices)};
  };
  UnitSpec unit{"unit", {{"scale", 300, 1, false, Initializer::ones(), {{"scale", 0, 300}}}}, false};
  if (fused) {
    unit.params.push_back(matrix("qkv", 75, {{"q", 0, 30}, {"k", 30, 20}, {"v", 50, 25}}));
  } else {
    unit.params.push_back(matrix("q", 30, {{"q", 0, 30}}));
    unit.params.push_back(matrix("k", 20, {{"k", 0, 20}}));
    unit.params.push_back(matrix("v", 25, {{"v", 0, 25}}));
  }
  unit.params.push_back({"shift", 7, 1, false, Initializer::zeros(), {{"shift", 0, 7}}});
  return {unit};
}

TEST(ParamStoreInitialize, DependsOnSliceNamesAndSeedAlone) {
  Started whole({.zero_stage = 0}, initialized_units(true));
  whole.store.initialize(5);
  const Values qkv = gathered(whole.store, 0, 1);
  EXPECT_EQ(gathered(whole.store, 0, 0), Values(300, 1.0f));
  EXPECT_EQ(gathered(whole.store, 0, 2), Values(7, 0.0f));
  double squares = 0;
  for (const float x : qkv) squares += double{x} * x;
  EXPECT_NEAR(squares / static_cast<double>(qkv.size()), 0.25, 0.03);

  for (int stage = 0; stage <= 3; ++stage) {
    Started apart({.compute = DType::bf16, .zero_stage = stage}, initialized_units(false));
    apart.store.initialize(5);
    Values joined;
    for (const int p : {1, 2, 3}) {
      const Values part = gathered(apart.store, 0, p);
      joined.insert(joined.end(), part.begin(), part.end());
    }
    EXPECT_EQ(joined, qkv) << "stage " << stage;
    apart.store.initialize(6);
    EXPECT_NE(gathered(apart.store, 0, 1), Values(qkv.begin(), qkv.begin() + 30 * 37));
  }
}

TEST(ParamStoreShards, CoverEveryUnitOnceAndStageZeroWhole) {
  for (int stage = 0; stage <= 3; ++stage) {
    for (const int64_t segment_elements : {default_segment_elements, int64_t{1024}}) {
      Started s({.zero_stage = stage, .groups = 4, .segment_elements = segment_elements});
      for (int u = 0; u < s.store.units().size(); ++u) {
        const int64_t all = s.store.units()[u].layout.elements();
        std::vector<int64_t> covered = {0, 0};
        for (size_t segment = 0; segment < s.store.units()[u].segments.size(); ++segment) {
          const ParamStore::Shard shard = s.store.shard(u, segment);
          const UnitRange own = s.store.units().owned(u, segment);
          covered[0] += own.end - own.begin;
          covered[1] += shard.end - shard.begin;
          EXPECT_EQ(shard.master().numel(), shard.end - shard.begin);
        }
        communicator().sum(covered);
        EXPECT_EQ(covered[0], all);
        EXPECT_EQ(covered[1], stage == 0 ? all * communicator().size() : all);
        EXPECT_EQ(s.store.units()[u].segments.size() > 1, all > segment_elements);
      }
    }
  }
}

TEST(ParamStoreMisuse, IsAnError) {
  Started s({.zero_stage = 3, .groups = 2});
  ParamStore& store = s.store;
  store.initialize(1);
  EXPECT_THROW(store.weight(0, 0), Error);  // not acquired
  EXPECT_THROW(store.release(0), Error);
  EXPECT_THROW(store.reducer().begin_step(3), Error);
  EXPECT_THROW(store.reducer().begin_step(0), Error);
  store.reducer().begin_step(1);
  EXPECT_THROW(store.reducer().begin_round(1), Error);
  store.reducer().begin_round(0);
  EXPECT_THROW(store.reducer().begin_micro_batch(true, false), Error);
  EXPECT_THROW(store.reducer().finish(), Error);  // nothing was reduced
  EXPECT_THROW(store.acquire(99), Error);
  store.acquire(0);
  EXPECT_THROW(store.publish_weights(), Error);  // in use
  EXPECT_THROW(store.weight(0, 2), Error);
  store.release(0);
  Arena unfinished;
  ParamStore cold(test::toy_units(true), Started::with_ranks({}));
  cold.plan(unfinished);
  EXPECT_THROW(cold.start(communicator(), stream()), Error);  // no memory
}

TEST(ParamStoreMisuse, AUnitIsReducedOnceInARound) {
  if (communicator().size() > 1) GTEST_SKIP() << "passes of several ranks communicate";
  Started s({.zero_stage = 0, .groups = 1});
  ParamStore& store = s.store;
  store.initialize(1);
  store.reducer().begin_step(1);
  store.reducer().begin_round(0);
  const auto reduce = [&](int unit) {
    fill_zero(store.gradient(unit, 0).data, store.gradient(unit, 0).bytes(), stream());
    store.reduce(unit);
  };
  const auto reduce_all = [&] {
    for (int unit = 0; unit < store.units().size(); ++unit) reduce(unit);
  };
  reduce_all();
  store.reducer().begin_micro_batch(true, true);
  EXPECT_THROW(reduce(0), Error);
  store.repeat_micro_batch();
  EXPECT_THROW(store.reducer().finish(), Error);
  EXPECT_NO_THROW(reduce_all());
  EXPECT_NO_THROW(store.reducer().finish());
}

// Passes over all units, as in a rollout: with memory for all weights each is gathered once between two changes.
TEST(ParamStoreGathers, AreKeptWhereAllWeightsHaveMemory) {
  if (communicator().size() == 1) GTEST_SKIP() << "one rank stores its fp32 weights whole";
  for (const bool keeps : {false, true}) {
    Started s({.zero_stage = 3, .keeps_gathered = keeps});
    ParamStore& store = s.store;
    store.initialize(1);
    const auto units = static_cast<uint64_t>(store.units().size());
    uint64_t gathers = 0;
    const auto pass = [&] {
      for (int unit = 0; unit < store.units().size(); ++unit) {
        const uint64_t before = activity().collectives;
        store.acquire(unit);
        gathers += activity().collectives - before;
        Values values(static_cast<size_t>(store.weight(unit, 0).numel()));
        copy_to_host(values.data(), store.weight(unit, 0).data, store.weight(unit, 0).bytes(), stream());
        stream().synchronize();
        EXPECT_EQ(values, gathered(store, unit, 0));
        store.release(unit);
      }
    };
    for (int i = 0; i < 3; ++i) pass();
    EXPECT_TRUE(keeps ? gathers == units : gathers > 2 * units) << gathers;
    store.initialize(2);
    pass();
    EXPECT_EQ(gathers == 2 * units, keeps);
  }
}

// Two units fit at once, the third does not; a prefetched unit is evicted.
TEST(ParamStoreRing, HoldsTwoUnitsAndReusesWhatIsThere) {
  if (communicator().size() == 1) GTEST_SKIP() << "one rank stores its fp32 weights whole";
  Started s({.zero_stage = 3});
  ParamStore& store = s.store;
  store.initialize(1);
  const auto values = [&](int unit) {
    const Tensor w = store.weight(unit, 0);
    Values out(static_cast<size_t>(w.numel()));
    copy_to_host(out.data(), w.data, w.bytes(), stream());
    stream().synchronize();
    return out;
  };
  store.acquire(0);
  store.acquire(1);
  store.acquire(4);  // small: a separate buffer
  EXPECT_THROW(store.acquire(2), Error);
  store.prefetch(3);  // deferred
  EXPECT_EQ(values(0), gathered(store, 0, 0));
  EXPECT_EQ(values(1), gathered(store, 1, 0));
  EXPECT_EQ(values(4), gathered(store, 4, 0));
  const void* place = store.weight(1, 0).data;
  store.release(1);
  store.acquire(1);  // still present
  EXPECT_EQ(store.weight(1, 0).data, place);
  store.release(1);
  store.prefetch(2);
  store.acquire(1);  // evicts the prefetched one
  EXPECT_EQ(values(1), gathered(store, 1, 0));
  for (const int unit : {0, 1, 4}) store.release(unit);
  store.prefetch(2);
  store.acquire(3);
  store.acquire(2);
  EXPECT_EQ(values(2), gathered(store, 2, 0));
  EXPECT_EQ(values(3), gathered(store, 3, 0));
  store.release(3);
  store.release(2);
}

}  // namespace
}  // namespace llmtrain
