#include "data/stream/data_stream.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "data_files.hpp"
#include "memory_tokens.hpp"

namespace llmtrain {
namespace {

using test::batch_of;
using test::first_batch;
using test::MemoryTokens;
using test::refusal;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

const SampleRules wrap = test::packing(DataConfig::Packing::wrap), none = test::packing(DataConfig::Packing::none);
constexpr int32_t no = ignore_target;

TEST(DataStream, WrapCutsWindowsOfTheStream) {
  // Two documents of 5 and 6 tokens, T = 4: windows [0, 4), [4, 8); tokens 9 and 10 do not fill a window.
  const auto file =
      std::make_shared<MemoryTokens>(std::vector<std::vector<int32_t>>{{10, 11, 12, 13, 14}, {20, 21, 22, 23, 24, 25}});
  const DataStream stream(file, wrap, batch_of(4, 2, 2), 1, false);
  EXPECT_EQ(stream.samples(), 2);
  EXPECT_EQ(stream.counts().unused_tokens, 2);
  const HostBatch batch = first_batch(stream);
  EXPECT_THAT(batch.ids, ElementsAre(10, 11, 12, 13, 14, 20, 21, 22));
  EXPECT_THAT(batch.targets, ElementsAre(11, 12, 13, 14, no, 21, 22, 23));
  EXPECT_THAT(batch.loss_weights, ElementsAre(1, 1, 1, 1, 0, 1, 1, 1));
  EXPECT_THAT(batch.positions, ElementsAre(0, 1, 2, 3, 0, 0, 1, 2));
  EXPECT_THAT(batch.segments, ElementsAre(0, 4, 5, 8));
  EXPECT_THAT(batch.sequence_ids, ElementsAre(0, 0, 0, 0, 1, 1, 1, 1));
  EXPECT_THAT(batch.sequence_offsets, ElementsAre(0, 1, 2, 3, 0, 1, 2, 3));
  EXPECT_EQ(stream.plan(0).trained_tokens, 7);
  EXPECT_EQ(stream.max_rows(), 8);
}

TEST(DataStream, WrapMayAttendAcrossDocuments) {
  const auto file =
      std::make_shared<MemoryTokens>(std::vector<std::vector<int32_t>>{{10, 11}, {20, 21, 22, 23, 24}, {30, 31}});
  SampleRules config = wrap;
  config.cross_document_attention = true;
  const HostBatch batch = first_batch(DataStream(file, config, batch_of(4, 2, 2), 1, false));
  EXPECT_THAT(batch.ids, ElementsAre(10, 11, 20, 21, 22, 23, 24, 30));
  EXPECT_THAT(batch.targets, ElementsAre(11, no, 21, 22, 23, 24, no, 31));
  EXPECT_THAT(batch.positions, ElementsAre(0, 1, 2, 3, 0, 1, 2, 3));
  EXPECT_THAT(batch.segments, ElementsAre(0, 4, 8));
}

TEST(DataStream, ATargetBehindTheWindowMayBeAnotherDocument) {
  const auto file = std::make_shared<MemoryTokens>(std::vector<std::vector<int32_t>>{{1, 2}, {3, 4}, {5}});
  const DataStream stream(file, wrap, batch_of(2, 2, 2), 1, false);
  const HostBatch batch = first_batch(stream);
  EXPECT_THAT(batch.targets, ElementsAre(2, no, 4, no));
  EXPECT_THAT(batch.segments, ElementsAre(0, 2, 4));
  EXPECT_EQ(stream.plan(0).trained_tokens, 2);
}

TEST(DataStream, NoneKeepsDocumentsWhole) {
  const auto file =
      std::make_shared<MemoryTokens>(std::vector<std::vector<int32_t>>{{1, 2, 3}, {9}, {4, 5}, {6, 7, 8, 9, 10}});
  const DataStream stream(file, none, batch_of(100, 3, 3), 1, false);
  EXPECT_EQ(stream.samples(), 3);
  EXPECT_EQ(stream.counts().without_target, 1);
  EXPECT_EQ(stream.counts().too_long, 0);
  const HostBatch batch = first_batch(stream);
  ASSERT_EQ(batch.ids.size(), 128U);
  const auto start = [](const auto& list, size_t n) {
    return std::vector<int32_t>(list.begin(), list.begin() + static_cast<std::ptrdiff_t>(n));
  };
  EXPECT_THAT(start(batch.ids, 8), ElementsAre(1, 2, 4, 6, 7, 8, 9, 0));
  EXPECT_THAT(start(batch.targets, 8), ElementsAre(2, 3, 5, 7, 8, 9, 10, no));
  EXPECT_THAT(start(batch.positions, 8), ElementsAre(0, 1, 0, 0, 1, 2, 3, 0));
  // 121 rows of padding in segments no longer than a sample.
  EXPECT_THAT(batch.segments, ElementsAre(0, 2, 3, 7, 107, 128));
  EXPECT_EQ(std::accumulate(batch.loss_weights.begin(), batch.loss_weights.end(), 0.0F), 7);
  EXPECT_EQ(stream.plan(0).trained_tokens, 7);
  EXPECT_EQ(stream.plan(0).micro_batches[0].rows, 128);
}

TEST(DataStream, NoneTreatsLongDocumentsAsAsked) {
  const auto file =
      std::make_shared<MemoryTokens>(std::vector<std::vector<int32_t>>{{1, 2, 3, 4, 5, 6}, {7, 8, 9}, {7, 8, 9, 10}});
  SampleRules config = none;
  const DataStream split(file, config, batch_of(2, 10, 10), 1, false);
  EXPECT_EQ(split.samples(), 6);  // 5 targets by 2, 2 by 2, 3 by 2
  EXPECT_EQ(split.counts().too_long, 2);
  EXPECT_EQ(split.plan(0).trained_tokens, 10);
  const HostBatch batch = first_batch(split);
  EXPECT_EQ(std::vector<int32_t>(batch.targets.begin(), batch.targets.begin() + 10),
            (std::vector<int32_t>{2, 3, 4, 5, 6, 8, 9, 8, 9, 10}));
  EXPECT_EQ(std::vector<int32_t>(batch.segments.begin(), batch.segments.begin() + 7),
            (std::vector<int32_t>{0, 2, 4, 5, 7, 9, 10}));

  config.overflow = DataConfig::Overflow::truncate;
  const DataStream truncate(file, config, batch_of(2, 10, 10), 1, false);
  EXPECT_EQ(truncate.samples(), 3);
  EXPECT_EQ(truncate.counts().too_long, 2);
  EXPECT_EQ(truncate.counts().unused_tokens, 4);
  EXPECT_EQ(truncate.plan(0).trained_tokens, 6);

  config.overflow = DataConfig::Overflow::error;
  EXPECT_THAT(refusal([&] { DataStream(file, config, batch_of(2, 1, 1), 1, false); }),
              AllOf(HasSubstr("65 "), HasSubstr("document 1: the document has 6 tokens")));
  EXPECT_NO_THROW(DataStream(file, config, batch_of(5, 1, 1), 1, false));
}

TEST(DataStream, TooLittleTextIsAnError) {
  const auto file = std::make_shared<MemoryTokens>(std::vector<std::vector<int32_t>>{{1, 2}});
  EXPECT_THAT(refusal([&] { DataStream(file, wrap, batch_of(2, 1, 1), 1, false); }), HasSubstr("65 "));
  EXPECT_EQ(DataStream(file, wrap, batch_of(1, 1, 1), 1, false).samples(), 1);
  const auto apart = std::make_shared<MemoryTokens>(std::vector<std::vector<int32_t>>{{1}, {2}});
  for (const SampleRules& config : {wrap, none}) {
    EXPECT_THAT(refusal([&] { DataStream(apart, config, batch_of(1, 1, 1), 1, false); }), HasSubstr("65 "));
  }
  const auto masked =
      std::make_shared<MemoryTokens>(std::vector<std::vector<int32_t>>{{1, 2, 3}}, std::vector<uint8_t>{1, 0, 0});
  EXPECT_THAT(refusal([&] { DataStream(masked, none, batch_of(2, 1, 1), 1, false); }), HasSubstr("-100"));
}

TEST(DataStream, TheMaskChoosesTargets) {
  const auto file = std::make_shared<MemoryTokens>(std::vector<std::vector<int32_t>>{{1, 2, 3}, {4, 5, 6, 7}},
                                                   std::vector<uint8_t>{1, 0, 1, 1, 1, 0, 1});
  for (const SampleRules& config : {wrap, none}) {
    const DataStream stream(file, config, batch_of(6, 1, 2), 1, false);
    std::vector<int32_t> trained;
    HostBatch batch;
    const StepPlan plan = stream.plan(0);
    for (const MicroBatchPlan& micro : plan.micro_batches) {
      stream.load(micro, batch);
      for (size_t i = 0; i < batch.targets.size(); ++i) {
        EXPECT_EQ(batch.targets[i] == no, batch.loss_weights[i] == 0);
        if (batch.targets[i] != no) trained.push_back(batch.targets[i]);
      }
    }
    EXPECT_THAT(trained, ElementsAre(3, 5, 7));  // 4 starts a document
    EXPECT_EQ(plan.trained_tokens, 3);
  }
}

/// Token ids are their positions in the stream, so that a batch shows its content.
struct RandomCase {
  std::vector<std::vector<int32_t>> documents;
  std::vector<uint8_t> mask;
  SampleRules data;
  BatchConfig batch;
};

RandomCase random_case(uint32_t seed) {
  std::mt19937 random(seed);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<uint32_t>(n)); };
  RandomCase c;
  int32_t next = 0;
  const int count = 1 + below(60), longest = 1 + below(40);
  for (int d = 0; d < count; ++d) {
    auto& document = c.documents.emplace_back();
    for (int i = 1 + below(longest); i > 0; --i) document.push_back(next++);
  }
  if (below(2) == 0) {
    for (int32_t i = 0; i < next; ++i) c.mask.push_back(below(3) > 0 ? 1 : 0);
  }
  c.data.packing = below(2) == 0 ? DataConfig::Packing::wrap : DataConfig::Packing::none;
  c.data.overflow = below(2) == 0 ? DataConfig::Overflow::split : DataConfig::Overflow::truncate;
  c.data.cross_document_attention = below(3) == 0;
  const int64_t micro = 1 + below(5);
  c.batch = batch_of(1 + below(30), micro, micro * (1 + below(4)));
  return c;
}

/// Targets that samples must cover: target position -> whether it is trained. Written from the definition, with the
/// document of every token.
std::map<int32_t, bool> expected_targets(const RandomCase& c) {
  std::vector<size_t> document_of;
  for (size_t d = 0; d < c.documents.size(); ++d) document_of.insert(document_of.end(), c.documents[d].size(), d);
  std::map<int32_t, bool> targets;
  const int64_t length = c.batch.sequence_length, all = static_cast<int64_t>(document_of.size());
  for (int64_t t = 1; t < all; ++t) {
    const size_t place = static_cast<size_t>(t);
    const bool same = document_of[place] == document_of[place - 1];
    if (c.data.packing == DataConfig::Packing::wrap) {
      if (t > (all - 1) / length * length) break;
    } else {
      const int64_t in_document = t - c.documents[document_of[place]].front();
      const bool cut = c.data.overflow == DataConfig::Overflow::truncate && in_document > length;
      if (!same || cut) continue;
    }
    targets[static_cast<int32_t>(t)] = same && (c.mask.empty() || c.mask[place] == 1);
  }
  return targets;
}

void check_batch(const RandomCase& c, const DataStream& stream, const MicroBatchPlan& plan, const HostBatch& batch,
                 std::map<int32_t, bool>& seen) {
  const size_t rows = batch.ids.size();
  ASSERT_EQ(static_cast<int64_t>(rows), plan.rows);
  ASSERT_LE(plan.rows, stream.max_rows());
  ASSERT_LE(static_cast<int64_t>(batch.segments.size()) - 1, stream.max_segments());
  ASSERT_EQ(batch.segments.front(), 0);
  ASSERT_EQ(batch.segments.back(), static_cast<int32_t>(rows));
  size_t segment = 0;
  for (size_t i = 0; i < rows; ++i) {
    if (static_cast<int32_t>(i) == batch.segments[segment + 1]) ++segment;
    ASSERT_EQ(batch.positions[i], static_cast<int32_t>(i) - batch.segments[segment]);
    ASSERT_LE(batch.segments[segment + 1] - batch.segments[segment], c.batch.sequence_length);
    ASSERT_EQ(batch.loss_weights[i], batch.targets[i] == no ? 0.0F : 1.0F);
    if (batch.sequence_ids[i] == stream.samples()) {  // padding
      ASSERT_EQ(batch.targets[i], no);
      continue;
    }
    const bool in_plan =
        std::find(plan.samples.begin(), plan.samples.end(), batch.sequence_ids[i]) != plan.samples.end();
    ASSERT_TRUE(in_plan);
    const int32_t target = batch.ids[i] + 1;
    ASSERT_TRUE(seen.emplace(target, batch.targets[i] != no).second) << "target " << target << " twice";
    if (batch.targets[i] != no) {
      ASSERT_EQ(batch.targets[i], target);
    }
    // Adjacent rows are in one segment exactly when attention may pass between them.
    if (i + 1 < rows && batch.sequence_ids[i + 1] == batch.sequence_ids[i]) {
      const bool starts = std::any_of(c.documents.begin(), c.documents.end(),
                                      [&](const auto& document) { return document.front() == target; });
      const bool across = c.data.cross_document_attention && c.data.packing == DataConfig::Packing::wrap;
      const bool cut = batch.segments[segment + 1] == static_cast<int32_t>(i) + 1;
      ASSERT_EQ(cut, starts && !across);
      ASSERT_EQ(batch.sequence_offsets[i + 1], batch.sequence_offsets[i] + 1);
    }
  }
}

TEST(DataStream, EveryTargetOncePerEpoch) {
  int shuffled = 0, epochs = 0;
  for (uint32_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(seed);
    const RandomCase c = random_case(seed);
    const std::map<int32_t, bool> expected = expected_targets(c);
    const auto file = std::make_shared<MemoryTokens>(c.documents, c.mask);
    const bool any = std::any_of(expected.begin(), expected.end(), [](const auto& target) { return target.second; });
    if (!any) {
      EXPECT_THAT(refusal([&] { DataStream(file, c.data, c.batch, seed, true); }), HasSubstr("65 "));
      continue;
    }
    const DataStream stream(file, c.data, c.batch, seed, true);
    std::vector<int64_t> order_before;
    for (int64_t epoch = 0; epoch < 3; ++epoch) {
      std::map<int32_t, bool> seen;
      std::vector<int64_t> order;
      for (int64_t s = 0; s < stream.steps_per_epoch(); ++s) {
        const StepPlan plan = stream.plan(epoch * stream.steps_per_epoch() + s);
        ASSERT_EQ(plan.epoch, epoch);
        const size_t before = seen.size();
        int64_t trained = 0;
        for (size_t m = 0; m < plan.micro_batches.size(); ++m) {
          const MicroBatchPlan& micro = plan.micro_batches[m];
          ASSERT_EQ(micro.index, static_cast<int64_t>(m));
          ASSERT_LE(static_cast<int64_t>(micro.samples.size()), c.batch.micro);
          order.insert(order.end(), micro.samples.begin(), micro.samples.end());
          HostBatch batch;
          stream.load(micro, batch);
          check_batch(c, stream, micro, batch, seen);
          if (HasFatalFailure()) return;
          for (const float weight : batch.loss_weights) trained += weight > 0 ? 1 : 0;
        }
        ASSERT_EQ(plan.trained_tokens, trained);
        ASSERT_GT(seen.size(), before);
      }
      ASSERT_EQ(seen, expected);
      ASSERT_EQ(static_cast<int64_t>(order.size()), stream.samples());
      ++epochs;
      shuffled += order != order_before && stream.samples() > 4 ? 1 : 0;
      order_before = order;
    }
  }
  EXPECT_GT(shuffled, epochs / 2);
}

TEST(DataStream, IsAFunctionOfSeedAndStep) {
  std::vector<std::vector<int32_t>> documents(100);
  for (size_t d = 0; d < documents.size(); ++d) documents[d].assign(1 + d % 7, static_cast<int32_t>(d));
  const auto file = std::make_shared<MemoryTokens>(documents);
  const auto samples_of = [&](uint64_t seed, int64_t step, bool shuffle = true) {
    const StepPlan plan = DataStream(file, none, batch_of(8, 2, 8), seed, shuffle).plan(step);
    std::vector<int64_t> all;
    for (const auto& micro : plan.micro_batches) all.insert(all.end(), micro.samples.begin(), micro.samples.end());
    return std::pair{all, plan.samples_hash};
  };
  EXPECT_EQ(samples_of(1, 5), samples_of(1, 5));
  EXPECT_NE(samples_of(1, 5).first, samples_of(2, 5).first);
  EXPECT_NE(samples_of(1, 5).second, samples_of(2, 5).second);
  EXPECT_NE(samples_of(1, 5).first, samples_of(1, 6).first);
  EXPECT_THAT(samples_of(1, 1, false).first, ElementsAre(8, 9, 10, 11, 12, 13, 14, 15));
  EXPECT_EQ(samples_of(1, 1, false), samples_of(2, 1, false));
}

TEST(DataStream, TheLastStepOfAnEpochMayBeShort) {
  const auto file = std::make_shared<MemoryTokens>(std::vector<std::vector<int32_t>>{std::vector<int32_t>(23, 1)});
  const DataStream stream(file, wrap, batch_of(2, 2, 4), 1, false);  // 11 samples
  EXPECT_EQ(stream.steps_per_epoch(), 3);
  const StepPlan last = stream.plan(2);
  ASSERT_EQ(last.micro_batches.size(), 2U);
  EXPECT_THAT(last.micro_batches[0].samples, ElementsAre(8, 9));
  EXPECT_THAT(last.micro_batches[1].samples, ElementsAre(10));
  EXPECT_EQ(last.micro_batches[1].rows, 2);
  EXPECT_EQ(last.trained_tokens, 6);
  EXPECT_EQ(stream.plan(3).epoch, 1);
  EXPECT_THAT(stream.plan(3).micro_batches[0].samples, ElementsAre(0, 1));
}

TEST(BatchBuffers, UploadsWhatIsThere) {
  const auto file = std::make_shared<MemoryTokens>(std::vector<std::vector<int32_t>>{{1, 2, 3}, {4, 5, 6, 7}});
  const DataStream stream(file, none, batch_of(5, 2, 2), 1, false);
  BatchBuffers buffers;
  Arena arena;
  buffers.plan(arena, stream.max_rows(), stream.max_segments());
  DeviceBuffer memory(arena.bytes());
  arena.commit(memory.data());
  Stream queue;
  const HostBatch host = first_batch(stream);
  const Batch batch = buffers.upload(host, queue);
  EXPECT_EQ(batch.tokens, 128);
  EXPECT_EQ(batch.segment_count, static_cast<int64_t>(host.segments.size()) - 1);
  EXPECT_EQ(batch.longest_segment, 5);
  const auto same = [&](const Tensor& tensor, const auto& values) {
    auto copy = values;
    std::fill(copy.begin(), copy.end(), typename std::decay_t<decltype(values)>::value_type{77});
    copy_to_host(copy.data(), tensor.data, tensor.bytes(), queue);
    queue.synchronize();
    return tensor.numel() == static_cast<int64_t>(values.size()) && copy == values;
  };
  EXPECT_TRUE(same(batch.ids, host.ids));
  EXPECT_TRUE(same(batch.positions, host.positions));
  EXPECT_TRUE(same(batch.targets, host.targets));
  EXPECT_TRUE(same(batch.loss_weights, host.loss_weights));
  EXPECT_TRUE(same(batch.segments, host.segments));
  EXPECT_TRUE(same(batch.sequence_ids, host.sequence_ids));
  EXPECT_TRUE(same(batch.sequence_offsets, host.sequence_offsets));
  EXPECT_FALSE(same(batch.ids, host.targets));
  HostBatch larger = host;
  larger.ids.push_back(1);
  EXPECT_THROW(buffers.upload(larger, queue), Error);
}

}  // namespace
}  // namespace llmtrain
