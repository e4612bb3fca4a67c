// llmtool upcycle: experts are copies of the MLP, and routers follow from the seed. tests/decks/hugging_face_test.cpp
// compares log-probabilities.

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
