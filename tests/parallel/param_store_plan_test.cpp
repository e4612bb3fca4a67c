// Bytes per rank compared with the formulas of ZeRO (Rajbhandari et al. 2020, section 5), without MPI and without
// memory.

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include "core/error.hpp"
#include "harness/dtype_text.hpp"
#include "harness/peak_memory.hpp"
#include "params/param_store.hpp"
#include "params/reduction/reduction_groups.hpp"

namespace llmtrain {
namespace {

constexpr int64_t divisible = 256 * 840;  // elements: whole chunks for 1 to 8 ranks
constexpr int64_t embedding = 5 * divisible, block = 2 * divisible;
constexpr int64_t blocks = 4;

UnitSpec unit(const std::string& name, int64_t elements, bool spans = false) {
  ParamSpec p;
  p.name = name + ".weight";
  p.rows = elements / 8;
  p.columns = 8;
  p.decay = true;
  p.slices = {{p.name, 0, p.rows}};
  return {name, {p}, spans};
}

std::vector<UnitSpec> toy_units(bool tied) {
  std::vector<UnitSpec> units = {unit("embedding", embedding, tied)};
  for (int64_t i = 0; i < blocks; ++i) units.push_back(unit("block", block));
  if (!tied) units.push_back(unit("head", embedding));
  return units;
}

Arena plan_of(const ParamStoreOptions& options, bool tied = true) {
  Arena arena;
  ParamStore(toy_units(tied), options).plan(arena);
  return arena;
}

/// Segments that are reduced row by row of a unit of several, in a store of two blocks.
size_t segments_by_rows(bool in_turn, int ranks) {
  UnitSpec spec = unit("block", block);
  spec.params.front().by_rows = true;
  spec.tensor_block = 0;
  spec.expert_block = in_turn ? 0 : -1;
  ParamStoreOptions options;
  options.segment_elements = block / 4;
  options.tensor_blocks = 2;
  options.tensor_size = ranks;
  return UnitStates({spec}, options)[0].by_rows;
}

// Ranks without rows could not follow the order in which others write several blocks.
TEST(UnitStates, RowsOfOneOfSeveralBlocksAreReducedWithTheUnit) {
  EXPECT_EQ(segments_by_rows(false, 1), 0U);
  EXPECT_EQ(segments_by_rows(false, 2), 4U) << "one block";
  EXPECT_EQ(segments_by_rows(true, 1), 4U) << "blocks one after the other";
}

class ParamStorePlan : public testing::TestWithParam<std::tuple<int, DType>> {};

TEST_P(ParamStorePlan, MatchesTheFormulas) {
  const auto [size, compute] = GetParam();
  const auto w = static_cast<int64_t>(size_of(compute));
  const int64_t psi = embedding + blocks * block;
  const bool fp32 = compute == DType::f32;
  for (int stage = 0; stage <= 3; ++stage) {
    ParamStoreOptions options;
    options.compute = compute;
    options.zero_stage = stage;
    options.size = size;
    options.groups = 8;
    const int64_t shared = stage == 0 ? 1 : size;
    const int64_t optimizer = (fp32 ? 8 : 12) * psi / shared;
    // Stage 3: two gathered units, and with fp32 compute the shard of the weights; alone, fp32 weights stay in place.
    const int64_t ring = w * (embedding + block);
    int64_t weights = stage < 3 ? w * psi : ring + (fp32 ? 4 * psi / size : 0);
    if (stage == 3 && size == 1 && fp32) weights = 4 * psi;
    // Sums of shards, and whole gradients or those of the tied embedding and two blocks.
    const int64_t gradients = 4 * psi / size + 4 * (stage < 2 && size > 1 ? psi : embedding + 2 * block);
    const int64_t communication = 2 * 4 * (embedding / size) * (size - 1);
    for (int rank = 0; rank < size; ++rank) {
      options.rank = rank;
      const Arena arena = plan_of(options);
      EXPECT_EQ(arena.bytes(MemoryCategory::weights), weights) << "stage " << stage;
      EXPECT_EQ(arena.bytes(MemoryCategory::optimizer), optimizer) << "stage " << stage;
      EXPECT_EQ(arena.bytes(MemoryCategory::gradients), gradients) << "stage " << stage;
      EXPECT_EQ(arena.bytes(MemoryCategory::communication), communication) << "stage " << stage;
      EXPECT_EQ(arena.bytes(), weights + optimizer + gradients + communication);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, ParamStorePlan,
                         testing::Combine(testing::Values(1, 2, 3, 4, 5, 6, 7, 8),
                                          testing::Values(DType::f32, DType::bf16, DType::f16)));

TEST(ParamStorePlan, UntiedUnitsAtBothEndsShareTheLargeSlot) {
  ParamStoreOptions options;
  options.zero_stage = 3;
  options.size = 4;
  options.groups = 4;
  const int64_t psi = 2 * embedding + blocks * block;
  const Arena arena = plan_of(options, false);
  EXPECT_EQ(arena.bytes(MemoryCategory::weights), 4 * (embedding + block + psi / 4));
  EXPECT_EQ(arena.bytes(MemoryCategory::gradients), 4 * (embedding + block + psi / 4));
}

TEST(ParamStorePlan, SeveralMicroBatchesPerGroupNeedAWholeGradient) {
  ParamStoreOptions options;
  options.zero_stage = 3;
  options.size = 4;
  options.groups = 4;
  options.micro_batches_per_group = 2;
  const int64_t psi = embedding + blocks * block;
  EXPECT_EQ(plan_of(options).bytes(MemoryCategory::gradients), 4 * (psi + psi / 4));
}

TEST(ParamStorePlan, OneGroupOnOneRankNeedsNoSecondGradient) {
  const int64_t psi = embedding + blocks * block;
  for (int stage = 0; stage <= 3; ++stage) {
    ParamStoreOptions options;
    options.zero_stage = stage;
    EXPECT_EQ(plan_of(options).bytes(MemoryCategory::gradients), 4 * psi);
  }
}

TEST(ParamStorePlan, BlocksOfSeveralGroupsNeedAnAccumulator) {
  const int64_t psi = embedding + blocks * block;
  const auto gradients = [&](int64_t groups, int64_t reduction_blocks) {
    ParamStoreOptions options;
    options.zero_stage = 1;
    options.size = 2;
    options.groups = groups;
    options.blocks = reduction_blocks;
    return plan_of(options).bytes(MemoryCategory::gradients);
  };
  EXPECT_EQ(gradients(4, 1), 4 * (psi + psi / 2));
  EXPECT_EQ(gradients(4, 4), 4 * (psi + psi / 2));
  EXPECT_EQ(gradients(4, 2), 4 * (psi + psi));
}

TEST(ParamStorePlan, AwkwardUnitsAreHeldOnceOverAllRanks) {
  for (const int size : {1, 2, 3, 5, 8, 64}) {
    int64_t optimizer = 0, elements = 0;
    for (int rank = 0; rank < size; ++rank) {
      ParamStoreOptions options;
      options.compute = DType::bf16;
      options.size = size;
      options.rank = rank;
      options.groups = 8;
      ParamStore store({unit("a", 256 * 13 + 8), unit("b", 8), unit("c", 256 * 7)}, options);
      Arena arena;
      store.plan(arena);
      optimizer += arena.bytes(MemoryCategory::optimizer);
      for (int u = 0; u < 3; ++u) {
        const UnitRange own = store.units().owned(u, 0);
        EXPECT_EQ(own.begin, store.units()[u].layout.borders(size)[static_cast<size_t>(rank)]);
        elements += own.end - own.begin;
      }
      EXPECT_EQ(store.units().parameters(), 256 * 13 + 8 + 8 + 256 * 7);
    }
    EXPECT_EQ(elements, 256 * (14 + 1 + 7));
    EXPECT_EQ(optimizer, 12 * elements);
  }
}

TEST(ParamStorePlan, RanksBeyondTheGroupsReceiveFromEveryGroup) {
  ParamStoreOptions options;
  options.size = 8;
  options.groups = 3;
  options.rank = 7;
  EXPECT_EQ(plan_of(options).bytes(MemoryCategory::communication), 2 * 4 * (embedding / 8) * 3);
  options.rank = 2;
  EXPECT_EQ(plan_of(options).bytes(MemoryCategory::communication), 2 * 4 * (embedding / 8) * 2);
}

TEST(ParamStorePlan, RanksOfANodeReadInsteadOfReceiving) {
  ParamStoreOptions options;
  options.zero_stage = 3;
  options.size = 8;
  options.groups = 8;
  const int64_t apart = plan_of(options).bytes();
  EXPECT_EQ(plan_of(options).shared_bytes(), 0);
  for (const auto& [node_size, pieces] : {std::pair(2, 6), std::pair(5, 3), std::pair(8, 0)}) {
    options.node_size = node_size;
    const Arena arena = plan_of(options);
    EXPECT_EQ(arena.bytes(MemoryCategory::communication), 2 * 4 * (embedding / 8) * pieces);
    EXPECT_EQ(arena.bytes(), apart - 2 * 4 * (embedding / 8) * (7 - pieces));
    // Two gathered units; the tied embedding's gradient and two blocks'.
    EXPECT_EQ(arena.shared_bytes(), 4 * (embedding + block) + 4 * (embedding + 2 * block));
  }
  options.zero_stage = 0;
  EXPECT_EQ(plan_of(options).shared_bytes(), 2 * 4 * (embedding + blocks * block));
  options.groups = 1;  // shards of one rank only, which may be on another node
  options.node_size = 7;
  EXPECT_EQ(plan_of(options).bytes(MemoryCategory::communication), 0);
  options.rank = 7;
  EXPECT_EQ(plan_of(options).bytes(MemoryCategory::communication), 2 * 4 * (embedding / 8));
}

// Only the last two blocks are trained; the second of them is divided.
TEST_P(ParamStorePlan, OfFrozenUnitsIsTheirStorage) {
  const auto [size, compute] = GetParam();
  const auto w = static_cast<int64_t>(size_of(compute));
  std::vector<UnitSpec> units = frozen(toy_units(true));
  units[3].trained = units[4].trained = true;
  UnitSpec part = unit("block.part", block);
  part.trained = false;
  part.same_layer_as_previous = true;
  units.push_back(part);
  const int64_t trained = 2 * block, kept = embedding + 3 * block;
  const bool fp32 = compute == DType::f32;
  for (int stage = 0; stage <= 3; ++stage) {
    ParamStoreOptions options;
    options.compute = compute;
    options.zero_stage = stage;
    options.size = size;
    options.groups = 8;
    const auto bytes = [&](const std::vector<UnitSpec>& of_units, MemoryCategory category) {
      Arena arena;
      ParamStore(of_units, options).plan(arena);
      return arena.bytes(category);
    };
    const int64_t shared = stage == 0 ? 1 : size;
    EXPECT_EQ(bytes(units, MemoryCategory::optimizer), (fp32 ? 8 : 12) * trained / shared) << "stage " << stage;
    const int64_t whole = stage < 2 && size > 1 ? trained : 2 * block;
    EXPECT_EQ(bytes(units, MemoryCategory::gradients), 4 * trained / size + 4 * whole) << "stage " << stage;
    EXPECT_EQ(bytes(units, MemoryCategory::communication), 2 * 4 * (block / size) * (size - 1)) << "stage " << stage;
    // Stage 3: shards, and two gathered units, with one more for the divided block. One rank stores frozen weights
    // once.
    int64_t weights = w * (trained + kept);
    if (stage == 3 && size > 1) {
      weights = w * kept / size + (fp32 ? 4 * trained / size : 0) + w * (embedding + block + block);
    } else if (stage == 3 && !fp32) {
      weights = w * kept + w * 2 * block;
    }
    EXPECT_EQ(bytes(units, MemoryCategory::weights), weights) << "stage " << stage;
    for (const MemoryCategory none :
         {MemoryCategory::optimizer, MemoryCategory::gradients, MemoryCategory::communication}) {
      EXPECT_EQ(bytes(frozen(units), none), 0) << "stage " << stage;
    }
  }
}

// All received shards together would be 16 GiB for each unit.
TEST(ParamStorePlan, OfThousandsOfMillionsOfRanksIsAsSmall) {
  ParamStoreOptions options;
  options.size = std::numeric_limits<int>::max();
  options.rank = options.size - 1;
  const int64_t before = test::peak_memory();
  const ParamStore store(frozen(toy_units(true)), options);
  EXPECT_EQ(store.units().owned(0, 0).end, embedding);
  EXPECT_LE(test::peak_memory() - before, test::with_sanitizer(int64_t{16} << 20));
}

TEST(ParamStorePlan, RefusesWhatCannotBe) {
  const auto refused = [](auto change) {
    ParamStoreOptions options;
    change(options);
    EXPECT_THROW(ParamStore(toy_units(true), options), Error);
  };
  refused([](ParamStoreOptions& o) { o.zero_stage = 4; });
  refused([](ParamStoreOptions& o) { o.rank = 1; });
  refused([](ParamStoreOptions& o) { o.node_size = 2; });
  refused([](ParamStoreOptions& o) { o.node_size = 0; });
  refused([](ParamStoreOptions& o) { o.groups = 0; });
  refused([](ParamStoreOptions& o) { o.blocks = 2; });
  refused([](ParamStoreOptions& o) { o.micro_batches_per_group = 0; });
  refused([](ParamStoreOptions& o) { o.compute = DType::f64; });
  EXPECT_THROW(ParamStore({}, {}), Error);
  EXPECT_THROW(ParamStore({{"empty", {}, false}}, {}), Error);
  UnitSpec gap = unit("gap", 256);
  gap.params[0].slices = {{"first", 0, 10}};
  EXPECT_THROW(ParamStore({gap}, {}), Error);
}

// The data's prefetch and the reducer agree by it on the groups of a rank.
TEST(ParamStorePlan, EveryGroupHasOneRankAndRound) {
  for (const int64_t ranks : {1, 3, 4}) {
    const GroupSchedule schedule{7, ranks};
    std::vector<int64_t> groups;
    for (int64_t round = 0; round < schedule.rounds(); ++round) {
      for (int64_t rank = 0; rank < ranks; ++rank) {
        if (const int64_t group = schedule.group_of(round, rank); group >= 0) groups.push_back(group);
      }
    }
    std::ranges::sort(groups);
    EXPECT_EQ(groups, (std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6})) << ranks;
  }
}

}  // namespace
}  // namespace llmtrain
