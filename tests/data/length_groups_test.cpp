// Steps of samples of equal length, and micro-batches by tokens.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <numeric>
#include <random>

#include "data/stream/packing.hpp"
#include "data_files.hpp"
#include "memory_tokens.hpp"

namespace llmtrain {
namespace {

using test::batch_of;
using test::content_of;
using test::MemoryTokens;
using test::packing;
using test::refusal;
using testing::HasSubstr;

TEST(LengthGroups, AreThoseOfTransformers) {
  const nlohmann::json cases = nlohmann::json::parse(content_of("tests/reference/lengths/grouped.json"));
  EXPECT_EQ(cases.size(), 6u);
  for (const auto& entry : cases) {
    const std::vector<int64_t> lengths = entry["lengths"];
    std::vector<int64_t> order = entry["order"];
    group_by_length(order, entry["batch"], [&](int64_t sample) { return lengths[static_cast<size_t>(sample)]; });
    EXPECT_EQ(order, entry["grouped"].get<std::vector<int64_t>>()) << lengths.size() << " samples";
  }
}

std::shared_ptr<MemoryTokens> documents_of_many_lengths() {
  std::mt19937 random(4);
  std::vector<std::vector<int32_t>> documents(203);
  int32_t id = 0;
  for (auto& document : documents) {
    document.resize(2 + random() % 30);
    std::iota(document.begin(), document.end(), id);
    id += static_cast<int32_t>(document.size());
  }
  return std::make_shared<MemoryTokens>(documents);
}

TEST(LengthGroups, EveryEpochHasEverySampleOnce) {
  const auto file = documents_of_many_lengths();
  SampleRules config = packing(DataConfig::Packing::none);
  config.group_by_length = true;
  const DataStream stream(file, config, batch_of(64, 2, 4), 7, true);
  const DataStream again(file, config, batch_of(64, 1, 4), 7, true);
  const DataStream plain(file, packing(DataConfig::Packing::none), batch_of(64, 2, 4), 7, true);
  std::vector<std::vector<int64_t>> epochs(2);
  int64_t spread = 0, plain_spread = 0;
  const auto spread_of = [&](const StepPlan& plan) {
    const auto [least, most] = std::ranges::minmax_element(plan.micro_batches, {}, &MicroBatchPlan::rows);
    return most->rows - least->rows;
  };
  for (int64_t step = 0; step < 2 * stream.steps_per_epoch(); ++step) {
    const StepPlan plan = stream.plan(step);
    auto& epoch = epochs[static_cast<size_t>(plan.epoch)];
    epoch.insert(epoch.end(), plan.samples.begin(), plan.samples.end());
    EXPECT_EQ(again.plan(step).samples, plan.samples) << "whatever the micro-batch";
    spread += spread_of(plan);
    plain_spread += spread_of(plain.plan(step));
  }
  EXPECT_LE(spread, plain_spread);
  EXPECT_NE(epochs[0], epochs[1]);
  for (auto& epoch : epochs) {
    std::ranges::sort(epoch);
    std::vector<int64_t> all(203);
    std::iota(all.begin(), all.end(), 0);
    EXPECT_EQ(epoch, all);
  }
  EXPECT_EQ(stream.plan(0).samples, stream.plan(0).samples) << "an earlier epoch again";
  const std::vector<WeightedTokens> two = {{file, 0.5}, {file, 0.5}};
  EXPECT_THAT(refusal([&] { DataStream(two, config, batch_of(64, 2, 4), 7, true); }),
              HasSubstr("78 data.group_by_length"));
}

// The samples of a step, their targets and the divisor of its loss do not depend on how passes are filled.
TEST(TokenBudget, DividesStepsByTokensAndChangesNothingElse) {
  const auto file = documents_of_many_lengths();
  for (const auto mode : {DataConfig::Packing::none, DataConfig::Packing::greedy}) {
    const SampleRules rows = packing(mode);
    SampleRules tokens = rows;
    tokens.max_tokens_per_batch = 70;
    const DataStream by_rows(file, rows, batch_of(32, 3, 12), 7, true);
    const DataStream by_tokens(file, tokens, batch_of(32, 1, 12), 7, true);
    ASSERT_EQ(by_tokens.steps_per_epoch(), by_rows.steps_per_epoch());
    const auto targets_of = [](const DataStream& stream, const StepPlan& plan, bool limited) {
      std::vector<int32_t> targets;
      HostBatch batch;
      for (size_t i = 0; i < plan.micro_batches.size(); ++i) {
        EXPECT_EQ(plan.micro_batches[i].index, static_cast<int64_t>(i));
        stream.load(plan.micro_batches[i], batch);
        EXPECT_LE(static_cast<int64_t>(batch.ids.size()), stream.max_rows());
        EXPECT_LE(static_cast<int64_t>(batch.segments.size()) - 1, stream.max_segments());
        const auto inputs = std::ranges::count_if(batch.loss_weights, [](float weight) { return weight > 0; });
        EXPECT_LE(inputs, limited ? 70 : 3 * 32);
        for (const int32_t target : batch.targets) {
          if (target != ignore_target) targets.push_back(target);
        }
      }
      return targets;
    };
    size_t passes = 0, passes_by_rows = 0;
    for (int64_t step = 0; step < by_rows.steps_per_epoch(); ++step) {
      const StepPlan a = by_rows.plan(step), b = by_tokens.plan(step);
      EXPECT_EQ(a.samples, b.samples);
      EXPECT_EQ(a.samples_hash, b.samples_hash);
      EXPECT_EQ(a.trained_tokens, b.trained_tokens);
      EXPECT_EQ(targets_of(by_rows, a, false), targets_of(by_tokens, b, true));
      EXPECT_LE(b.micro_batches.size(), 12u);
      passes += b.micro_batches.size();
      passes_by_rows += a.micro_batches.size();
    }
    EXPECT_NE(passes, passes_by_rows);
  }
}

}  // namespace
}  // namespace llmtrain
