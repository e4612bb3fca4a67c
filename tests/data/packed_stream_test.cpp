// Samples of several documents, and streams of several sources.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "data/stream/data_stream.hpp"
#include "data_files.hpp"
#include "memory_tokens.hpp"

namespace llmtrain {
namespace {

using test::batch_of;
using test::first_batch;
using test::MemoryTokens;
using test::packing;
using test::refusal;
using testing::ElementsAre;
using testing::HasSubstr;

const SampleRules none = packing(DataConfig::Packing::none);
constexpr int32_t no = ignore_target;

TEST(DataStream, PackedDocumentsShareASampleAndNothingElse) {
  // Inputs 3, 1, 2, 0 (one token), 5 (two windows of 4 and 1): T = 4.
  const auto file = std::make_shared<MemoryTokens>(
      std::vector<std::vector<int32_t>>{{10, 11, 12, 13}, {20, 21}, {30, 31, 32}, {40}, {50, 51, 52, 53, 54, 55}});
  const DataStream stream(file, packing(DataConfig::Packing::first_fit), batch_of(4, 2, 4), 1, false);
  EXPECT_EQ(stream.samples(), 3);  // {10.. 20..} {30.. 54} {50..}
  EXPECT_EQ(stream.counts().inputs, 11);
  EXPECT_EQ(stream.counts().too_long, 1);
  EXPECT_EQ(stream.counts().without_target, 1);
  const HostBatch batch = first_batch(stream);
  const auto head = [](const auto& list, size_t n) { return std::vector(list.begin(), list.begin() + n); };
  ASSERT_EQ(batch.ids.size(), 128U) << "rounded up";
  EXPECT_THAT(head(batch.ids, 7), ElementsAre(10, 11, 12, 20, 30, 31, 54));
  EXPECT_THAT(head(batch.targets, 8), ElementsAre(11, 12, 13, 21, 31, 32, 55, no));
  EXPECT_THAT(head(batch.positions, 7), ElementsAre(0, 1, 2, 0, 0, 1, 0));
  EXPECT_THAT(head(batch.segments, 5), ElementsAre(0, 3, 4, 6, 7));
  EXPECT_THAT(head(batch.sequence_ids, 7), ElementsAre(0, 0, 0, 0, 1, 1, 1));
  EXPECT_THAT(head(batch.sequence_offsets, 7), ElementsAre(0, 1, 2, 3, 0, 1, 2));
  EXPECT_EQ(stream.plan(0).trained_tokens, 11);
  EXPECT_LE(static_cast<int64_t>(batch.segments.size()) - 1, stream.max_segments());
}

TEST(DataStream, EveryPackingTrainsTheSameTargets) {
  std::mt19937 random(8);
  std::vector<std::vector<int32_t>> documents;
  std::vector<uint8_t> mask;
  for (int d = 0; d < 400; ++d) {
    std::vector<int32_t>& document = documents.emplace_back(1 + random() % 60);
    for (int32_t& id : document) {
      id = static_cast<int32_t>(mask.size());
      mask.push_back(random() % 5 > 0 ? 1 : 0);
    }
  }
  const auto file = std::make_shared<MemoryTokens>(documents, mask);
  const auto targets_of = [&](const SampleRules& config, int64_t* samples) {
    const DataStream stream(file, config, batch_of(32, 3, 9), 5, true);
    *samples = stream.samples();
    std::vector<int32_t> targets;
    HostBatch batch;
    for (int64_t step = 0; step < stream.steps_per_epoch(); ++step) {
      int64_t trained = 0;
      const StepPlan plan = stream.plan(step);
      for (const MicroBatchPlan& micro : plan.micro_batches) {
        stream.load(micro, batch);
        EXPECT_LE(static_cast<int64_t>(batch.ids.size()), stream.max_rows());
        EXPECT_LE(static_cast<int64_t>(batch.segments.size()) - 1, stream.max_segments());
        for (size_t i = 0; i < batch.ids.size(); ++i) {
          if (batch.targets[i] == ignore_target) continue;
          EXPECT_EQ(batch.targets[i], batch.ids[i] + 1) << "ids count through the file: no target of another document";
          targets.push_back(batch.targets[i]);
          ++trained;
        }
      }
      EXPECT_EQ(trained, plan.trained_tokens);
    }
    std::sort(targets.begin(), targets.end());
    return targets;
  };
  int64_t alone = 0, greedy = 0, first = 0, best = 0;
  const std::vector<int32_t> expected = targets_of(none, &alone);
  EXPECT_EQ(targets_of(packing(DataConfig::Packing::greedy), &greedy), expected);
  EXPECT_EQ(targets_of(packing(DataConfig::Packing::first_fit), &first), expected);
  EXPECT_EQ(targets_of(packing(DataConfig::Packing::best_fit), &best), expected);
  EXPECT_LT(greedy, alone);
  EXPECT_LT(first, greedy);
  EXPECT_LE(best, first);
  SampleRules cut = packing(DataConfig::Packing::best_fit);
  cut.overflow = DataConfig::Overflow::truncate;
  EXPECT_LT(targets_of(cut, &best).size(), expected.size());
  cut.overflow = DataConfig::Overflow::error;
  EXPECT_THAT(refusal([&] { targets_of(cut, &best); }), HasSubstr("choose a longer sequence"));
}

/// Ids of the samples of steps [first, last), in order.
std::vector<int64_t> samples_between(const DataStream& stream, int64_t first, int64_t last) {
  std::vector<int64_t> ids;
  for (int64_t step = first; step < last; ++step) {
    for (const MicroBatchPlan& micro : stream.plan(step).micro_batches) {
      ids.insert(ids.end(), micro.samples.begin(), micro.samples.end());
    }
  }
  return ids;
}

TEST(DataStream, SourcesHaveTheirSharesAndEpochs) {
  const auto file_of = [](int documents) {
    return std::make_shared<MemoryTokens>(std::vector<std::vector<int32_t>>(static_cast<size_t>(documents), {1, 2, 3}));
  };
  // 30, 7 and 20 samples: ids 0.., 30.., 37..
  const std::vector<WeightedTokens> sources = {{file_of(30), 0.5}, {file_of(7), 0.2}, {file_of(20), 0.3}};
  const DataStream stream(sources, none, batch_of(4, 2, 6), 9, true);
  EXPECT_EQ(stream.samples(), 57);
  ASSERT_EQ(stream.sources().size(), 3U);
  EXPECT_EQ(stream.sources()[1].share, 0.2);
  EXPECT_EQ(stream.sources()[1].samples, 7);
  EXPECT_EQ(stream.steps_per_epoch(), 10);
  const std::vector<int64_t> ids = samples_between(stream, 0, 500);
  ASSERT_EQ(ids.size(), 3000U) << "no step is short";
  std::vector<std::vector<int64_t>> of_source(3);
  for (size_t i = 0; i < ids.size(); ++i) {
    of_source[ids[i] < 30 ? 0 : ids[i] < 37 ? 1 : 2].push_back(ids[i]);
    if (i % 10 != 9) continue;
    const auto n = static_cast<int64_t>(i) + 1;
    EXPECT_EQ(static_cast<int64_t>(of_source[0].size()), n * 5 / 10);
    EXPECT_EQ(static_cast<int64_t>(of_source[1].size()), n * 2 / 10);
  }
  const std::vector<size_t> sizes = {30, 7, 20};
  for (size_t s = 0; s < 3; ++s) {
    std::set<std::vector<int64_t>> orders;
    for (size_t at = 0; at + sizes[s] <= of_source[s].size(); at += sizes[s]) {
      const auto begin = of_source[s].begin() + static_cast<std::ptrdiff_t>(at);
      std::vector<int64_t> epoch(begin, begin + static_cast<std::ptrdiff_t>(sizes[s]));
      orders.insert(epoch);
      std::sort(epoch.begin(), epoch.end());
      EXPECT_EQ(std::adjacent_find(epoch.begin(), epoch.end()), epoch.end())
          << "each sample once in source epoch " << at;
    }
    EXPECT_GT(orders.size(), 20U) << "a new order every epoch";
  }
  // A pure function of the step; for one source the order is unchanged.
  EXPECT_EQ(samples_between(stream, 77, 78), std::vector<int64_t>(ids.begin() + 77 * 6, ids.begin() + 78 * 6));
  const DataStream again(sources, none, batch_of(4, 2, 6), 9, true);
  EXPECT_EQ(samples_between(again, 0, 500), ids);
  EXPECT_NE(samples_between(DataStream(sources, none, batch_of(4, 2, 6), 10, true), 0, 500), ids);
  EXPECT_EQ(samples_between(DataStream({sources[0]}, none, batch_of(4, 2, 6), 9, true), 0, 5),
            samples_between(DataStream(sources[0].tokens, none, batch_of(4, 2, 6), 9, true), 0, 5));
}

}  // namespace
}  // namespace llmtrain
