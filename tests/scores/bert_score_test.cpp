// BERTScore equals that of the package bert-score under tiny encoders of both kinds (tests/reference/bert_score): of
// empty, single, repeated and overlong texts, of each layer, with idf and with a baseline.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "harness/temporary_folder.hpp"
#include "scores/bert_encoder.hpp"
#include "scores/text_metric.hpp"

namespace llmtrain {
namespace {

using nlohmann::json;
using testing::HasSubstr;

const std::string reference = "tests/reference/bert_score/";

std::vector<TextSegment> segments(const json& goldens) {
  std::vector<TextSegment> all;
  for (const json& segment : goldens["segments"]) all.push_back({segment[0], segment[1]});
  return all;
}

TEST(BertScore, EqualsThePackage) {
  const json goldens = json::parse(std::ifstream(reference + "goldens.json"));
  const std::vector<TextSegment> all = segments(goldens);
  double wrong_layer = 0;
  for (const json& golden : goldens["cases"]) {
    SCOPED_TRACE(golden.dump().substr(0, 80));
    TextMetricOptions options;
    options.encoder = reference + golden["model"].get<std::string>();
    options.encoder_layer = golden["layers"];
    options.idf = golden["idf"];
    if (golden["baseline"]) options.baseline = reference + "baseline.tsv";
    const auto metric = make_bert_score(options);
    if (metric->needs_corpus()) metric->read_corpus(all);
    options.encoder_layer = golden["layers"] == 1 ? 2 : 1;
    const auto other = make_bert_score(options);
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
  }
  EXPECT_GT(wrong_layer, 5e-3) << "control: another layer";
}

TEST(BertScore, RefusesWhatIsNoEncoder) {
  const auto error = [](const std::string& folder, int64_t layer = 0) -> std::string {
    try {
      const BertEncoder encoder(folder, layer);
    } catch (const UserError& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_EQ(error(reference + "bert"), "no error") << "control";
  EXPECT_THAT(error(reference + "bert", 4), HasSubstr("it has 3 layers, not 4"));
  EXPECT_THAT(error("tests/reference/hf/llama"), HasSubstr("model_type"));
  const test::TemporaryFolder folder;
  for (const char* file : {"config.json", "model.safetensors"})
    std::filesystem::copy_file(reference + "bert/" + file, folder / file);
  EXPECT_THAT(error((folder / "").string()), HasSubstr("the encoder has no tokenizer"));
}

}  // namespace
}  // namespace llmtrain
