// Scores equal those of sacreBLEU, rouge-score and SQuAD's script (tests/reference/scores) to 1e-9, on odd segments and
// on public files.

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "scores/ngrams.hpp"
#include "scores/text_metric.hpp"

namespace llmtrain {
namespace {

using nlohmann::json;

const json& goldens() {
  static const json all = json::parse(std::ifstream("tests/reference/scores/goldens.json"));
  return all;
}

template <class E>
E enum_value(const std::string& name) {
  return static_cast<E>(std::ranges::find(enum_names<E>, name) - enum_names<E>.begin());
}

/// Makes the metric of a setting.
std::unique_ptr<TextMetric> make_metric(const std::string& setting, bool effective_order = false) {
  const json& golden = goldens()["scores"][setting];
  TextMetricOptions options;
  options.effective_order = effective_order;
  options.lowercase = golden.value("lowercase", false);
  options.stemmer = golden.value("stemmer", false);
  options.tokenizer = enum_value<TextMetricOptions::Tokenizer>(golden.value("tokenize", "13a"));
  options.smoothing = enum_value<TextMetricOptions::Smoothing>(golden.value("smooth_method", "exp"));
  if (golden.contains("smooth_value")) options.smooth_value = golden["smooth_value"];
  return find_text_metric(golden["metric"].get<std::string>())->make(options);
}

double score(TextMetric& metric, const std::vector<TextSegment>& segments) {
  std::vector<double> sums(metric.size());
  for (const TextSegment& segment : segments) metric.add(segment, sums);
  return metric.score(sums).value;
}

/// Segments of a corpus of the goldens.
std::vector<TextSegment> segments(const std::string& corpus) {
  std::vector<TextSegment> result;
  for (const json& segment : goldens()["segments"]) {
    result.push_back({segment[0], segment[1]});
    if (corpus != "all") result.back().references.resize(1);
  }
  if (corpus == "short") return {result[12], result[13]};
  return result;
}

double tolerance(double expected) { return 1e-9 * std::max(1.0, std::abs(expected)); }

TEST(ScoreGoldens, SegmentsAndCorpora) {
  int compared = 0;
  for (const std::string corpus : {"one", "all", "short"}) {
    const std::vector<TextSegment> texts = segments(corpus);
    for (const auto& [setting, expected] : goldens()["scores"].items()) {
      const auto single = make_metric(setting, true), metric = make_metric(setting);
      for (size_t i = 0; i < texts.size(); ++i, ++compared) {
        const double wanted = expected[corpus][i];
        EXPECT_NEAR(score(*single, {texts[i]}), wanted, tolerance(wanted)) << setting << " " << corpus << " " << i;
      }
      const double wanted = expected["corpus"][corpus];
      EXPECT_NEAR(score(*metric, texts), wanted, tolerance(wanted)) << setting << " " << corpus;
      if (!expected.contains("signature")) continue;
      EXPECT_EQ(metric->signature(corpus == "all" ? "var" : "1"), expected["signature"][corpus].get<std::string>())
          << setting;
    }
  }
  EXPECT_GE(compared, 2 * 50 * 26);
}

TEST(ScoreGoldens, EverySettingHasScoresOfItsOwn) {  // a control: no setting passes for another
  const json& scores = goldens()["scores"];
  for (const auto& [setting, expected] : scores.items()) {
    const auto metric = make_metric(setting);
    const double all = score(*metric, segments("all")), few = score(*metric, segments("short"));
    for (const auto& [other, values] : scores.items()) {
      const double far_all = std::abs(all - values["corpus"]["all"].get<double>());
      const double far_few = std::abs(few - values["corpus"]["short"].get<double>());
      EXPECT_EQ(far_all <= tolerance(all) && far_few <= tolerance(few), setting == other) << setting << ", " << other;
    }
  }
}

TEST(ScoreGoldens, Stems) {
  ASSERT_GE(goldens()["stems"].size(), 600U);
  int changed = 0;
  for (const auto& [word, value] : goldens()["stems"].items()) {
    const auto stem = value.get<std::string>();
    EXPECT_EQ(porter_stem(word), stem) << word;
    changed += word == stem ? 0 : 1;
  }
  EXPECT_GT(changed, 400);
}

std::vector<std::string> lines_of(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

TEST(ScoreGoldens, PublicFiles) {
  const char* data = std::getenv("LLMTRAIN_DATA");
  if (data == nullptr) GTEST_SKIP() << "LLMTRAIN_DATA is not set";
  const std::string folder = std::string(data) + "/metrics/";
  ASSERT_EQ(goldens()["fixtures"].size(), 3U);
  for (const json& files : goldens()["fixtures"]) {
    const auto hypotheses = lines_of(folder + files["hypothesis"].get<std::string>());
    const auto references = lines_of(folder + files["reference"].get<std::string>());
    ASSERT_EQ(hypotheses.size(), references.size());
    std::vector<TextSegment> texts;
    for (size_t i = 0; i < hypotheses.size(); ++i) texts.push_back({hypotheses[i], {references[i]}});
    for (const auto& [setting, wanted] : files["corpus"].items()) {
      EXPECT_NEAR(score(*make_metric(setting), texts), wanted.get<double>(), tolerance(wanted)) << setting;
    }
  }
}

TEST(ScoreGoldens, PublishedScores) {  // of multi-bleu.perl and ROUGE-1.5.5
  const char* data = std::getenv("LLMTRAIN_DATA");
  if (data == nullptr) GTEST_SKIP() << "LLMTRAIN_DATA is not set";
  const std::string folder = std::string(data) + "/metrics/";
  const json bleu = json::parse(std::ifstream(folder + "wmt15_en_ru_100/expected.json"));
  const json& fixtures = goldens()["fixtures"];
  EXPECT_NEAR(fixtures[0]["corpus"]["bleu none"], bleu["multi-bleu.perl ref.ru < google.ru"]["BLEU"], 5e-3);
  const json rouge = json::parse(std::ifstream(folder + "rouge155/expected.json"))["per_line"];
  const auto hypotheses = lines_of(folder + "rouge155/prediction.txt");
  const auto references = lines_of(folder + "rouge155/target.txt");
  for (const std::string setting : {"rouge1", "rouge2", "rougeL", "rouge1 stemmer", "rouge2 stemmer"}) {
    const auto metric = make_metric(setting);
    for (size_t i = 0; i < 2; ++i) {
      std::vector<double> sums(metric->size());
      metric->add({hypotheses[i], {references[i]}}, sums);
      const TextScore value = metric->score(sums);
      std::string name = setting;
      if (const size_t space = name.find(' '); space != std::string::npos) name = name.substr(0, space) + "_stemmed";
      EXPECT_NEAR(value.details[1].second, rouge[name][i][0], 5e-6) << setting;
      EXPECT_NEAR(value.details[0].second, rouge[name][i][1], 5e-6) << setting;
      EXPECT_NEAR(value.value, rouge[name][i][2], 5e-6) << setting;
    }
  }
}

}  // namespace
}  // namespace llmtrain
