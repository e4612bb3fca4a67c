// llmtool upcycle: the model that it makes computes what the dense one does, and its routers follow from the seed.

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "hf/weights/stored_slice.hpp"
#include "tool/tool_program.hpp"

namespace llmtrain {
namespace {

using nlohmann::json;
using test::golden_model;
using test::llmtool;
using test::Outcome;
using testing::AllOf;
using testing::HasSubstr;

class Upcycle : public test::ToolTest {
 protected:
  Outcome upcycle(const std::string& model, const std::string& output, std::vector<std::string> options) const {
    std::vector<std::string> all = {"upcycle", "--model", model, "--output", path(output)};
    all.insert(all.end(), options.begin(), options.end());
    return llmtool(all);
  }
  void make(const std::string& model, const std::string& output, const std::vector<std::string>& options) const {
    const Outcome outcome = upcycle(golden_model(model), output, options);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(outcome.out, path(output) + "\n");
  }
  /// Values of a tensor of a folder with one file.
  std::vector<float> values(const std::string& folder, const std::string& name) const {
    const FolderHandle handle = FolderHandle::open(folder);
    const WeightIndex index = read_weight_index(handle);
    const FileHandle file = handle.open_to_read(single_weights_name);
    const WeightIndex::Tensor* tensor = index.find(name);
    if (tensor == nullptr) return {};
    std::vector<float> all(static_cast<size_t>(tensor->numel()));
    read_slice(whole_tensor(*tensor, [&](size_t) -> const FileHandle& { return file; }), 0, tensor->numel(),
               all.data());
    return all;
  }
};

std::vector<double> logprobs(const std::string& folder) {
  const Outcome outcome = llmtool({"logprobs", "--model", folder}, R"({"input_ids": [5, 6, 40, 7, 22, 31, 9, 9, 12]})");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  return json::parse(outcome.out)["logprobs"];
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

TEST_F(Upcycle, BeginsAsTheDenseModel) {
  const std::vector<double> others = logprobs(golden_model("qwen2"));
  for (const char* family : {"llama", "mistral", "qwen3"}) {
    make(family, family, {"--experts", "4", "--per-token", "3"});
    const std::vector<double> dense = logprobs(golden_model(family)), found = logprobs(path(family));
    EXPECT_LT(largest_difference(found, dense), 2e-6) << family;
    EXPECT_GT(largest_difference(others, dense), 0.1) << "control: another model";
    json config = json::parse(content(family + std::string("/config.json")));
    const bool qwen = std::string(family) == "qwen3";
    EXPECT_EQ(config["architectures"][0], qwen ? "Qwen3MoeForCausalLM" : "MixtralForCausalLM");
    EXPECT_EQ(config["num_experts_per_tok"], 3);
    if (!qwen) continue;
    EXPECT_EQ(config["norm_topk_prob"], true);
    config["norm_topk_prob"] = false;  // weights that sum to less than 1
    file(family + std::string("/config.json"), config.dump());
    EXPECT_GT(largest_difference(logprobs(path(family)), dense), 1e-3) << "control";
  }
}

TEST_F(Upcycle, CopiesMlpsAndDrawsRouters) {
  make("llama", "first", {"--experts", "3"});
  make("llama", "again", {"--experts", "3"});
  make("llama", "other", {"--experts", "3", "--seed", "7"});
  EXPECT_EQ(content("first/model.safetensors"), content("again/model.safetensors"));
  const std::string router = "model.layers.1.block_sparse_moe.gate.weight";
  const std::vector<float> drawn = values(path("first"), router);
  EXPECT_NE(drawn, values(path("other"), router));
  EXPECT_NE(drawn, values(path("first"), "model.layers.0.block_sparse_moe.gate.weight"));
  double squares = 0;
  for (const float x : drawn) squares += static_cast<double>(x) * x;
  EXPECT_NEAR(std::sqrt(squares / static_cast<double>(drawn.size())), 0.02, 0.006) << "initializer_range";
  for (int expert = 0; expert < 3; ++expert) {
    for (const auto& [part, dense] : {std::pair{"w1", "gate_proj"}, {"w3", "up_proj"}, {"w2", "down_proj"}}) {
      const std::vector<float> copy =
          values(path("other"), fmt::format("model.layers.1.block_sparse_moe.experts.{}.{}.weight", expert, part));
      EXPECT_FALSE(copy.empty());
      EXPECT_EQ(copy, values(golden_model("llama"), fmt::format("model.layers.1.mlp.{}.weight", dense)));
      EXPECT_NE(copy, values(golden_model("llama"), fmt::format("model.layers.0.mlp.{}.weight", dense))) << "control";
    }
  }
  EXPECT_TRUE(values(path("first"), "model.layers.1.mlp.up_proj.weight").empty());
}

// A model with biases has no counterpart; a folder that exists is kept.
TEST_F(Upcycle, RefusesWhatItCannotMake) {
  const auto expect = [&](int code, const std::string& what, const std::string& model, const std::string& output,
                          const std::vector<std::string>& options) {
    const Outcome outcome = upcycle(model, output, options);
    EXPECT_EQ(outcome.code, code) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(what));
  };
  const std::string llama = golden_model("llama");
  expect(65, "a llama or mistral model becomes mixtral, a qwen3 model qwen3_moe", golden_model("qwen2"), "new",
         {"--experts", "4"});
  expect(65, "a mixtral model has no counterpart", golden_model("mixtral"), "new", {"--experts", "4"});
  expect(64, "--experts", llama, "new", {"--experts", "1"});
  expect(64, "--per-token: a token cannot use 5 of 4 experts", llama, "new", {"--experts", "4", "--per-token", "5"});
  make("llama", "there", {"--experts", "2"});
  expect(73, "it already exists", llama, "there", {"--experts", "2"});
  expect(64, "--output", llama, std::filesystem::absolute(llama).string(), {"--experts", "2"});
  std::filesystem::copy(llama, path("biased"));
  json config = json::parse(content("biased/config.json"));
  config["attention_bias"] = true;
  file("biased/config.json", config.dump());
  expect(65, "Transformers has no mixtral model with model.qkv_bias = true", path("biased"), "new", {"--experts", "2"});
}

}  // namespace
}  // namespace llmtrain
