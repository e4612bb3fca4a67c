// Curricula: values by step equal DeepSpeed's (tests/reference/curriculum); what a step takes is a function of deck and
// step, with every packing and with several sources.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "data/stream/difficulty_order.hpp"
#include "data_files.hpp"
#include "memory_tokens.hpp"

namespace llmtrain {
namespace {

using nlohmann::json;
using test::batch_of;
using test::MemoryTokens;
using test::packing;
using testing::ElementsAre;
using testing::SizeIs;

using Strategy = CurriculumConfig::Strategy;
using Shape = CurriculumConfig::Shape;
using Scale = CurriculumConfig::Scale;
using Kind = CurriculumConfig::Difficulty::Kind;

CurriculumConfig growing(Strategy strategy, double start, double end, int64_t steps, double multiple_of) {
  CurriculumConfig config;
  config.strategy = strategy;
  config.start = start;
  config.end = end;
  config.steps = steps;
  config.multiple_of = multiple_of;
  return config;
}

CurriculumConfig config_of(const json& item) {
  const json& settings = item["config"];
  if (item["type"] != "fixed_discrete") {
    CurriculumConfig config = growing(Strategy::length, item["min"], item["max"], settings["total_curriculum_step"],
                                      settings["difficulty_step"]);
    config.shape = item["type"] == "fixed_root" ? Shape::root : Shape::linear;
    config.root_degree = settings.value("root_degree", 1);
    return config;
  }
  CurriculumConfig config;
  config.shape = Shape::steps;
  for (size_t i = 0; i < settings["difficulty"].size(); ++i) {
    config.levels.push_back(settings["difficulty"][i].dump());
    if (i < settings["max_step"].size()) config.levels.back() += ":" + settings["max_step"][i].dump();
  }
  return config;
}

TEST(Curriculum, ValuesAreDeepSpeeds) {
  const json golden = json::parse(std::ifstream("tests/reference/curriculum/schedules.json"));
  for (const json& item : golden["cases"]) {
    const CurriculumConfig config = config_of(item);
    CurriculumConfig other = config;  // control: another shape has other values
    other.shape = config.shape == Shape::root ? Shape::linear : Shape::root;
    other.root_degree = 4;
    other.start = std::max<int64_t>(other.start, 1);
    other.steps = std::max<int64_t>(other.steps, 7);
    bool differs = false;
    for (size_t i = 0; i < golden["steps"].size(); ++i) {
      EXPECT_EQ(config.value(golden["steps"][i]), item["values"][i]) << item["type"] << golden["steps"][i];
      differs = differs || other.value(golden["steps"][i]) != item["values"][i];
    }
    EXPECT_TRUE(differs) << item["type"];
  }
}

TEST(Curriculum, LevelsMustGrow) {
  CurriculumConfig config;
  config.levels = {"8:10", "16:20", "32"};
  EXPECT_EQ(config.parsed_levels().size(), 3U);
  for (const std::vector<std::string>& wrong : std::vector<std::vector<std::string>>{
           {}, {"8:10"}, {"8", "16"}, {"8:10", "4"}, {"8:10", "16:10", "32"}, {"8:x", "16"}, {"0:3", "8"}}) {
    config.levels = wrong;
    EXPECT_TRUE(config.parsed_levels().empty()) << json(wrong);
  }
}

/// Documents of 1, 2, ... 60 tokens, whose ids count through the file.
std::vector<std::vector<int32_t>> documents_of(int count, int32_t first_id) {
  std::vector<std::vector<int32_t>> documents;
  for (int d = 0; d < count; ++d) {
    std::vector<int32_t>& document = documents.emplace_back(static_cast<size_t>(1 + d * 7 % 60));
    for (int32_t& id : document) id = first_id++;
  }
  return documents;
}

/// Checks a step's batches against its plan, and returns the longest run of rows of one sample.
int64_t load_step(const DataStream& stream, const StepPlan& plan) {
  HostBatch batch;
  int64_t trained = 0, longest = 0;
  for (const MicroBatchPlan& micro : plan.micro_batches) {
    stream.load(micro, batch);
    EXPECT_EQ(static_cast<int64_t>(batch.ids.size()), micro.rows);
    EXPECT_LE(micro.rows, stream.max_rows());
    EXPECT_LE(std::ssize(batch.segments) - 1, stream.max_segments());
    for (size_t i = 0; i < batch.ids.size(); ++i) {
      if (batch.sequence_ids[i] == stream.samples()) continue;  // padding
      longest = std::max<int64_t>(longest, batch.sequence_offsets[i] + 1);
      if (batch.targets[i] == ignore_target) continue;
      EXPECT_EQ(batch.targets[i], batch.ids[i] + 1) << "no target of another document";
      ++trained;
    }
  }
  EXPECT_EQ(trained, plan.trained_tokens);
  return longest;
}

TEST(Curriculum, CutsSamplesOfEveryPacking) {
  const std::vector<WeightedTokens> sources = {{std::make_shared<MemoryTokens>(documents_of(200, 0)), 0.7},
                                               {std::make_shared<MemoryTokens>(documents_of(90, 20000)), 0.3}};
  const CurriculumConfig config = growing(Strategy::length, 8, 32, 10, 8);
  using Packing = DataConfig::Packing;
  for (const Packing mode : {Packing::none, Packing::wrap, Packing::greedy, Packing::best_fit}) {
    for (const bool mixes : {false, true}) {
      const std::vector<WeightedTokens> used(sources.begin(), sources.begin() + (mixes ? 2 : 1));
      const DataStream stream(used, packing(mode), batch_of(32, 2, 8), 5, true, config);
      const DataStream whole(used, packing(mode), batch_of(32, 2, 8), 5, true);
      for (int64_t step = 0; step < 12; ++step) {
        const StepPlan plan = stream.plan(step);
        EXPECT_EQ(plan.curriculum, config.value(step + 1));
        EXPECT_EQ(plan.samples, whole.plan(step).samples) << "the order stays";
        const int64_t longest = load_step(stream, plan);
        EXPECT_LE(longest, *plan.curriculum);
        if (mode == Packing::wrap) {
          EXPECT_EQ(longest, *plan.curriculum);
        }
      }
      EXPECT_LT(stream.plan(0).trained_tokens, whole.plan(0).trained_tokens);
      EXPECT_EQ(stream.plan(11).trained_tokens, whole.plan(11).trained_tokens) << "32 is the whole sample";
    }
  }
}

TEST(Curriculum, DrawsTheEasiestOnceEach) {
  // Document d has d + 2 tokens: sample d has d + 1 inputs.
  std::vector<std::vector<int32_t>> documents;
  for (size_t d = 0; d < 100; ++d) documents.emplace_back(d + 2, 7);
  const std::vector<WeightedTokens> one = {{std::make_shared<MemoryTokens>(documents), 1}};
  CurriculumConfig config = growing(Strategy::difficulty, 10, 100, 9, 10);
  config.shape = Shape::steps;
  config.levels = {"10:4", "40:12", "100"};
  config.difficulty.kind = Kind::length;
  const DataStream stream(one, packing(DataConfig::Packing::none), batch_of(128, 1, 5), 3, true, config);
  const auto drawn = [&](int64_t first, int64_t last) {
    std::multiset<int64_t> samples;
    for (int64_t step = first; step < last; ++step) {
      for (const int64_t sample : stream.plan(step).samples) samples.insert(sample);
    }
    return samples;
  };
  // Four steps of 5 take the 10 easiest twice; eight steps the 40 easiest once; twenty steps all 100 once.
  const auto expect_each = [](const std::multiset<int64_t>& samples, int64_t pool, size_t times) {
    for (int64_t sample = 0; sample < pool; ++sample) EXPECT_EQ(samples.count(sample), times) << sample;
    EXPECT_EQ(samples.size(), static_cast<size_t>(pool) * times);
  };
  expect_each(drawn(0, 4), 10, 2);
  expect_each(drawn(4, 12), 40, 1);
  expect_each(drawn(12, 32), 100, 1);
  EXPECT_NE(stream.plan(0).samples, stream.plan(2).samples) << "the second round has another order";
}

TEST(Curriculum, RareTokensAreHard) {
  // Token 1 is frequent, 2 is not, 3 occurs once.
  std::vector<std::vector<int32_t>> documents = {{3, 1, 1, 1}, {2, 1, 1, 1}, {1, 1, 1, 1}, {2, 2, 1, 1}};
  for (int d = 0; d < 20; ++d) documents.push_back({1, 1, 1, 1});
  const auto file = std::make_shared<MemoryTokens>(documents);
  std::vector<SampleSource> sources;
  sources.emplace_back(file, packing(DataConfig::Packing::none), batch_of(8, 1, 1), 0);
  const std::vector<double> rarity = sample_difficulties(sources, Kind::rarity);
  EXPECT_EQ(rarity[2], rarity[4]);
  EXPECT_LT(rarity[2], rarity[1]);
  EXPECT_LT(rarity[1], rarity[0]);
  EXPECT_LT(rarity[0], rarity[3]);
}

TEST(Curriculum, ValuesAreDifficulties) {
  CurriculumConfig config = growing(Strategy::difficulty, 1.5, 3.5, 10, 0.5);
  config.scale = Scale::values;
  std::vector<double> values;
  for (int64_t step = 1; step <= 10; ++step) values.push_back(config.value(step));
  EXPECT_THAT(values, ElementsAre(1.5, 1.5, 2, 2, 2.5, 2.5, 2.5, 3, 3, 3.5));
  config.levels = {"-0.5:3", "0.25:9", "1e3"};
  EXPECT_EQ(config.parsed_levels().size(), 3U);
  config.scale = Scale::percent;
  EXPECT_TRUE(config.parsed_levels().empty()) << "control: percentages are whole";
}

/// Documents of `count` tokens each, whose difficulty is their number.
std::shared_ptr<const MemoryTokens> rated_documents(size_t documents, size_t tokens) {
  const auto file = std::make_shared<MemoryTokens>(std::vector(documents, std::vector<int32_t>(tokens, 7)));
  file->set_preferences(1, std::string(difficulty_column));
  return file;
}

TEST(Curriculum, DrawsFromSamplesUpToAValue) {
  const std::vector<WeightedTokens> one = {{rated_documents(40, 5), 1}};
  CurriculumConfig config = growing(Strategy::difficulty, 3.5, 39, 20, 3);
  config.scale = Scale::values;
  config.difficulty.kind = Kind::column;
  const DataStream stream(one, packing(DataConfig::Packing::none), batch_of(8, 1, 4), 3, true, config);
  EXPECT_THAT(stream.difficulty_order()->difficulties(0), SizeIs(40));
  std::set<int64_t> drawn;
  for (int64_t step = 0; step < 40; ++step) {
    for (const int64_t sample : stream.plan(step).samples) {
      EXPECT_LE(static_cast<double>(sample), config.value(step + 1));
      drawn.insert(sample);
    }
    if (step == 0) {
      EXPECT_EQ(drawn, (std::set<int64_t>{0, 1, 2, 3})) << "each of them once";
    }
  }
  EXPECT_EQ(drawn.size(), 40U);
}

TEST(Curriculum, SamplesOfSeveralDocumentsHaveTheirMean) {
  const auto file = rated_documents(4, 6);  // difficulties 0 to 3
  const auto values = [&](DataConfig::Packing mode, int64_t length) {
    std::vector<SampleSource> sources;
    sources.emplace_back(file, packing(mode), batch_of(length, 1, 1), 0);
    return sample_difficulties(sources, Kind::column);
  };
  // Windows of 8 inputs have 6 of document 0 and 2 of 1; 4 of 1 and 4 of 2; the rest is not a window.
  EXPECT_THAT(values(DataConfig::Packing::wrap, 8), ElementsAre(0.25, 1.5));
  EXPECT_THAT(values(DataConfig::Packing::greedy, 10), ElementsAre(0.5, 2.5));
  EXPECT_THAT(values(DataConfig::Packing::none, 10), ElementsAre(0, 1, 2, 3));
}

TEST(Curriculum, TakesTheDifficultiesThatAreGiven) {
  const std::vector<WeightedTokens> one = {{rated_documents(10, 5), 1}};
  CurriculumConfig config = growing(Strategy::difficulty, 20, 100, 8, 10);
  config.difficulty.kind = Kind::loss;
  const std::vector<double> losses = {5, 4, 9, 8, 0.5, 7, 6, 0.25, 3, 2};
  const auto stream = [&](std::span<const double> given) {
    return DataStream(one, packing(DataConfig::Packing::none), batch_of(8, 1, 2), 3, true, config, given);
  };
  const std::vector<int64_t> first = stream(losses).plan(0).samples;
  EXPECT_EQ(std::set<int64_t>(first.begin(), first.end()), (std::set<int64_t>{4, 7}));
  EXPECT_EQ(stream({}).difficulty_order(), nullptr) << "an estimate does not know the losses";
}

TEST(Curriculum, SourcesKeepTheirShares) {
  const std::vector<WeightedTokens> sources = {{std::make_shared<MemoryTokens>(documents_of(200, 0)), 0.75},
                                               {std::make_shared<MemoryTokens>(documents_of(100, 20000)), 0.25}};
  CurriculumConfig config = growing(Strategy::difficulty, 10, 100, 30, 10);
  const DataStream stream(sources, packing(DataConfig::Packing::none), batch_of(64, 2, 8), 3, true, config);
  const int64_t first = stream.sources()[0].samples;
  for (int64_t step = 0; step < 40; ++step) {
    const StepPlan plan = stream.plan(step), again = stream.plan(step);
    EXPECT_EQ(plan.samples, again.samples);
    EXPECT_EQ(std::ranges::count_if(plan.samples, [&](int64_t sample) { return sample < first; }), 6);
    load_step(stream, plan);
  }
}

}  // namespace
}  // namespace llmtrain
