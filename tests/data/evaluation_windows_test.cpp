// Windows that score every token with as much context as fits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <numeric>

#include "data/stream/data_stream.hpp"
#include "memory_tokens.hpp"

namespace llmtrain {
namespace {

using test::batch_of;
using test::MemoryTokens;
using testing::ElementsAre;

/// Returns the context of each scored token (ids are 0, 1, 2 ...): the earlier tokens in its window.
std::map<int32_t, int> contexts(const DataStream& stream) {
  std::map<int32_t, int> found;
  int64_t trained = 0;
  HostBatch batch;
  for (int64_t step = 0; step < stream.steps_per_epoch(); ++step) {
    const StepPlan plan = stream.plan(step);
    trained += plan.trained_tokens;
    for (const MicroBatchPlan& micro : plan.micro_batches) {
      stream.load(micro, batch);
      EXPECT_EQ(static_cast<int64_t>(batch.ids.size()), micro.rows);
      EXPECT_LE(micro.rows, stream.max_rows());
      EXPECT_LE(static_cast<int64_t>(batch.segments.size()) - 1, stream.max_segments());
      for (size_t i = 0; i < batch.targets.size(); ++i) {
        EXPECT_EQ(batch.targets[i] == ignore_target, batch.loss_weights[i] == 0);
        if (batch.targets[i] == ignore_target) continue;
        EXPECT_EQ(batch.targets[i], batch.ids[i] + 1);
        EXPECT_TRUE(found.emplace(batch.targets[i], batch.positions[i] + 1).second) << "scored twice";
      }
    }
  }
  EXPECT_EQ(trained, static_cast<int64_t>(found.size()));
  return found;
}

std::shared_ptr<MemoryTokens> counting(int n, std::vector<uint8_t> mask = {}) {
  std::vector<int32_t> ids(static_cast<size_t>(n));
  std::iota(ids.begin(), ids.end(), 0);
  return std::make_shared<MemoryTokens>(std::vector<std::vector<int32_t>>{ids}, std::move(mask));
}

SampleRules windows(int64_t stride) {
  SampleRules config;
  config.keep_rest = true;
  config.stride = stride;
  return config;
}

TEST(EvaluationWindows, WithoutAStrideTheRestIsAShorterWindow) {
  const DataStream stream(counting(12), windows(0), batch_of(4, 2, 2), 1, false);
  EXPECT_EQ(stream.samples(), 3);
  EXPECT_EQ(stream.counts().unused_tokens, 0);
  EXPECT_EQ(stream.counts().inputs, 11);
  EXPECT_THAT(contexts(stream), ElementsAre(std::pair(1, 1), std::pair(2, 2), std::pair(3, 3), std::pair(4, 4),
                                            std::pair(5, 1), std::pair(6, 2), std::pair(7, 3), std::pair(8, 4),
                                            std::pair(9, 1), std::pair(10, 2), std::pair(11, 3)));
  SampleRules training;
  EXPECT_EQ(contexts(DataStream(counting(12), training, batch_of(4, 2, 2), 1, false)).size(), 8U) << "control";
}

TEST(EvaluationWindows, OverlapByTheStride) {
  // Windows of tokens 0-5, 2-7, 4-9, 6-10; from the second on only the last two targets count, in the last window one.
  const DataStream stream(counting(11), windows(2), batch_of(6, 1, 2), 1, false);
  EXPECT_EQ(stream.samples(), 4);
  EXPECT_THAT(contexts(stream),
              ElementsAre(std::pair(1, 1), std::pair(2, 2), std::pair(3, 3), std::pair(4, 4), std::pair(5, 5),
                          std::pair(6, 4), std::pair(7, 5), std::pair(8, 4), std::pair(9, 5), std::pair(10, 4)));
}

TEST(EvaluationWindows, ThatOnlyTouchLeaveFirstTokensOut) {
  const DataStream stream(counting(13), windows(4), batch_of(4, 1, 1), 1, false);
  EXPECT_EQ(stream.samples(), 3) << "a window of token 12 alone has no target";
  EXPECT_THAT(contexts(stream),
              ElementsAre(std::pair(1, 1), std::pair(2, 2), std::pair(3, 3), std::pair(5, 1), std::pair(6, 2),
                          std::pair(7, 3), std::pair(9, 1), std::pair(10, 2), std::pair(11, 3)));
}

TEST(EvaluationWindows, EveryTokenOnceWhateverTheLengths) {
  for (const int tokens : {2, 3, 5, 8, 9, 10, 31}) {
    for (const int64_t length : {2, 3, 8}) {
      for (int64_t stride = 1; stride < length; ++stride) {
        const DataStream stream(counting(tokens), windows(stride), batch_of(length, 1, 1), 1, false);
        const auto found = contexts(stream);
        EXPECT_EQ(static_cast<int>(found.size()), tokens - 1) << length << ' ' << stride;
        for (const auto& [token, context] : found) {
          EXPECT_GE(context, std::min<int64_t>(token, length - stride)) << "token " << token;
        }
      }
    }
  }
}

TEST(EvaluationWindows, MasksAndBordersOfDocumentsStillHold) {
  std::vector<uint8_t> mask(11, 1);
  mask[6] = mask[3] = 0;
  const DataStream masked(counting(11, mask), windows(2), batch_of(6, 1, 1), 1, false);
  const auto found = contexts(masked);
  EXPECT_EQ(found.size(), 8U);
  EXPECT_FALSE(found.contains(3) || found.contains(6));

  const auto two = std::make_shared<MemoryTokens>(std::vector<std::vector<int32_t>>{{0, 1, 2, 3, 4}, {5, 6, 7, 8}});
  const auto apart = contexts(DataStream(two, windows(2), batch_of(6, 1, 1), 1, false));
  EXPECT_EQ(apart.size(), 7U) << "token 5 has nothing before it";
  EXPECT_FALSE(apart.contains(5));
  EXPECT_EQ(apart.at(6), 1);
}

}  // namespace
}  // namespace llmtrain
