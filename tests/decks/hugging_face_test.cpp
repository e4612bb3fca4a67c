// llmtool generate and logprobs on models that Transformers made, against what Transformers computes with them.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "decks/program.hpp"

namespace llmtrain::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

std::string golden_model(const std::string& name) { return (source_folder() / "tests/reference/hf" / name).string(); }

class HuggingFace : public testing::TestWithParam<const char*> {
 protected:
  HuggingFace() : golden_(json::parse(read_file(model() + "/expected.json"))) {}
  static std::string model() { return golden_model(GetParam()); }

  static std::string greedy(const std::vector<int>& prompt, size_t tokens) {
    const Outcome outcome =
        llmtool({"generate", "--model", model(), "--prompt-ids", fmt::format("{}", fmt::join(prompt, ",")), "--ids",
                 "--greedy", "--ignore-eos", "--max-new-tokens", std::to_string(tokens)});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    return outcome.output;
  }

  json golden_;
};

TEST_P(HuggingFace, GreedyGenerationIsIdentical) {
  for (const json& one : golden_["greedy"]) {
    const std::vector<int> expected = one["new"];
    std::vector<int> prompt = one["prompt"];
    EXPECT_EQ(greedy(prompt, expected.size()), fmt::format("{}\n", fmt::join(expected, " ")));
    bool other = false;  // control
    for (int k = 1; k <= 3 && !other; ++k) {
      prompt.back() = (prompt.back() + 7) % 41;
      other = greedy(prompt, expected.size()) != fmt::format("{}\n", fmt::join(expected, " "));
    }
    EXPECT_TRUE(other);
  }
}

TEST_P(HuggingFace, LogProbabilitiesAreThoseOfTheLogits) {
  const std::vector<int> ids = golden_["input_ids"];
  const json row = {{"input_ids", ids}};
  const json reversed = {{"input_ids", std::vector<int>(ids.rbegin(), ids.rend())}};
  const Outcome outcome = llmtool({"logprobs", "--model", model()}, row.dump() + "\n" + reversed.dump() + "\n");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  const size_t first_line = outcome.output.find('\n');
  const json found = json::parse(outcome.output.substr(0, first_line));
  const json other = json::parse(outcome.output.substr(first_line + 1));
  const std::vector<double> values = found["logprobs"], control = other["logprobs"];
  ASSERT_EQ(values.size(), ids.size() - 1);
  double sum = 0, largest_control = 0;
  for (size_t t = 0; t < values.size(); ++t) {
    const std::vector<double> logits = golden_["logits"][t];
    double total = 0;
    for (const double x : logits) total += std::exp(x);
    const double expected = logits[static_cast<size_t>(ids[t + 1])] - std::log(total);
    EXPECT_NEAR(values[t], expected, 1e-5) << "token " << t;
    largest_control = std::max(largest_control, std::abs(control[t] - expected));
    sum += expected;
  }
  EXPECT_NEAR(found["sum"].get<double>(), sum, 1e-4);
  EXPECT_GT(largest_control, 0.1) << "other ids have other probabilities";
}

INSTANTIATE_TEST_SUITE_P(Families, HuggingFace,
                         testing::Values("gpt2", "gpt2_published", "llama", "llama3_v4_sharded", "mistral", "qwen2",
                                         "qwen3", "gemma2", "phi3"),
                         [](const auto& test) { return std::string(test.param); });

TEST(HuggingFaceErrors, AreNamed) {
  const auto expect = [](int code, const std::string& what, const std::vector<std::string>& arguments,
                         const std::string& input = "") {
    const Outcome outcome = llmtool(arguments, input);
    EXPECT_EQ(outcome.exit_code, code) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr(what));
  };
  const std::string model = golden_model("llama");
  expect(66, "nowhere", {"generate", "--model", "nowhere", "--prompt-ids", "1"});
  expect(66, "no tokenizer is there", {"generate", "--model", model, "--prompt", "text"});
  expect(64, "--prompt-ids", {"generate", "--model", model, "--prompt-ids", "1,41"});
  expect(64, "one of --prompt", {"generate", "--model", model});
  expect(65, "standard input:2: an id is no whole number below the vocabulary's 41", {"logprobs", "--model", model},
         "{\"input_ids\": [1, 2]}\n{\"input_ids\": [1, 41]}\n");
  expect(65, "33 ids are more than the model's context of 32", {"logprobs", "--model", model},
         json({{"input_ids", std::vector<int>(33, 1)}}).dump());
}

}  // namespace
}  // namespace llmtrain::test
