// BERTScore equals that of the package bert-score under tiny encoders of both kinds and tiny decoders
// (tests/reference/bert_score): of empty, single, repeated and overlong texts, of each layer, with idf and with a
// baseline.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/error.hpp"
#include "device/device.hpp"
#include "harness/temporary_folder.hpp"
#include "scores/text_encoder.hpp"
#include "scores/text_metric.hpp"

namespace llmtrain {
namespace {

using nlohmann::json;
using testing::HasSubstr;

const std::string reference = "tests/reference/bert_score/";

std::vector<TextSegment> segments(const json& goldens) {
  std::vector<TextSegment> all;
  for (const json& segment : goldens) all.push_back({segment[0], segment[1]});
  return all;
}

/// Compares with goldens. Returns the largest difference of an F1 of another layer.
double compare(const json& golden, const std::vector<TextSegment>& all) {
  TextMetricOptions options;
  options.encoder = reference + golden["model"].get<std::string>();
  options.encoder_layer = golden["layers"];
  options.idf = golden["idf"];
  if (golden["baseline"]) options.baseline = reference + "baseline.tsv";
  const auto metric = make_bert_score(options);
  if (metric->needs_corpus()) metric->read_corpus(all);
  options.encoder_layer = golden["layers"] == 1 ? 2 : 1;
  const auto other = make_bert_score(options);
  double wrong_layer = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    std::vector<double> sums(metric->size(), 0), others(metric->size(), 0);
    metric->add(all[i], sums);
    for (size_t s = 0; s < 3; ++s) {
      EXPECT_NEAR(sums[s + 1], golden["scores"][i][s].get<double>(), 5e-4) << all[i].hypothesis;
    }
    if (options.idf) continue;
    other->add(all[i], others);
    wrong_layer = std::max(wrong_layer, std::abs(others[3] - golden["scores"][i][2].get<double>()));
  }
  return wrong_layer;
}

TEST(BertScore, EqualsThePackage) {
  const json goldens = json::parse(std::ifstream(reference + "goldens.json"));
  double wrong_layer = 0;
  for (const json& golden : goldens["cases"]) {
    SCOPED_TRACE(golden.dump().substr(0, 80));
    wrong_layer = std::max(wrong_layer, compare(golden, segments(goldens["segments"])));
  }
  EXPECT_GT(wrong_layer, 5e-3) << "control: another layer";
}

TEST(BertScore, OfDecodersEqualsThePackage) {
  std::optional<DeviceRuntime> device;
  try {
    device.emplace(0, 1);
  } catch (const UserError& error) {
    GTEST_SKIP() << error.what();
  }
  const json goldens = json::parse(std::ifstream(reference + "goldens.json"));
  double wrong_layer = 0;
  for (const json& golden : goldens["decoder_cases"]) {
    SCOPED_TRACE(golden.dump().substr(0, 80));
    wrong_layer = std::max(wrong_layer, compare(golden, segments(goldens["decoder_segments"])));
  }
  EXPECT_GT(wrong_layer, 5e-3) << "control: another layer";

  TextMetricOptions options;
  options.encoder = reference + "llama";
  const auto metric = make_bert_score(options);
  EXPECT_EQ(metric->signature("1"), "decoder llama|layer:2|idf:no|rescaled:no|nrefs:1");
  std::vector<double> sums(metric->size(), 0);
  metric->add({"", {"the cat"}}, sums);
  EXPECT_EQ(sums[3], 0) << "an empty text matches nothing";
  metric->add({"the", {"the"}}, sums);
  EXPECT_NEAR(sums[3], 1, 1e-6) << "control: one word";
}

TEST(BertScore, RefusesWhatIsNoEncoder) {
  const auto error_of = [](const std::string& folder, int64_t layer = 0) -> std::string {
    try {
      open_text_encoder(folder, layer);
    } catch (const UserError& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_EQ(error_of(reference + "bert"), "no error") << "control";
  EXPECT_THAT(error_of(reference + "bert", 4), HasSubstr("it has 3 layers, not 4"));
  EXPECT_THAT(error_of(reference + "gpt2", 4), HasSubstr("it has 3 layers, not 4"));
  EXPECT_THAT(error_of("tests/reference/hf/llama"), HasSubstr("the decoder has no tokenizer"));
  const test::TemporaryFolder folder;
  for (const char* file : {"config.json", "model.safetensors"})
    std::filesystem::copy_file(reference + "bert/" + file, folder / file);
  EXPECT_THAT(error_of((folder / "").string()), HasSubstr("the encoder has no tokenizer"));
  std::ofstream(folder / "config.json") << R"({"model_type": "t5"})";
  EXPECT_THAT(error_of((folder / "").string()), HasSubstr("model_type"));
}

}  // namespace
}  // namespace llmtrain
