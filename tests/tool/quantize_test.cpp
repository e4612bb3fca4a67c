// llmtool quantize: options, what it writes, and that other commands read it.

#include <gmock/gmock.h>

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

class Quantize : public test::ToolTest {
 protected:
  Outcome quantize(const std::string& output, std::vector<std::string> options, const std::string& model = "llama") {
    std::vector<std::string> all = {"quantize", "--model", golden_model(model), "--output", path(output)};
    all.insert(all.end(), options.begin(), options.end());
    return llmtool(all);
  }
  WeightIndex made(const std::string& output, const std::vector<std::string>& options) {
    const Outcome outcome = quantize(output, options);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(outcome.out, path(output) + "\n");
    return read_weight_index(FolderHandle::open(path(output)));
  }
  static Quantization of(const WeightIndex& index, const std::string& name) {
    const WeightIndex::Tensor* tensor = index.find(name);
    EXPECT_TRUE(tensor != nullptr && tensor->quantized) << name;
    return tensor != nullptr && tensor->quantized ? tensor->quantized->quantization : Quantization{};
  }
  static bool is_plain(const WeightIndex& index, const std::string& name) {
    return index.find(name) != nullptr && !index.find(name)->quantized;
  }
};

/// Values of one matrix of a folder with one file.
std::vector<float> values(const std::string& folder) {
  const FolderHandle handle = FolderHandle::open(folder);
  const WeightIndex index = read_weight_index(handle);
  const FileHandle file = handle.open_to_read(single_weights_name);
  const WeightIndex::Tensor& tensor = *index.find("model.layers.1.mlp.down_proj.weight");
  std::vector<float> all(static_cast<size_t>(tensor.numel()));
  read_slice(whole_tensor(tensor, [&](size_t) -> const FileHandle& { return file; }), 0, tensor.numel(), all.data());
  return all;
}

const std::string q_proj = "model.layers.0.self_attn.q_proj.weight", down_proj = "model.layers.1.mlp.down_proj.weight";

TEST_F(Quantize, StoresAsItsOptionsSay) {
  const WeightIndex nf4 = made("nf4", {"--bits", "4"});
  EXPECT_EQ(of(nf4, q_proj), (Quantization{.double_quantization = false}));
  for (const char* kept : {"lm_head.weight", "model.embed_tokens.weight", "model.norm.weight"}) {
    EXPECT_TRUE(is_plain(nf4, kept)) << kept;
  }
  const WeightIndex fp4 = made("fp4", {"--bits", "4", "--type", "fp4", "--double", "--block-size", "128",
                                       "--skip-modules", "down_proj,model.layers.0.self_attn"});
  EXPECT_EQ(of(fp4, "model.layers.1.self_attn.q_proj.weight"),
            (Quantization{.type = QuantizedType::fp4, .block_size = 128}));
  EXPECT_TRUE(is_plain(fp4, q_proj));
  EXPECT_TRUE(is_plain(fp4, down_proj));
  EXPECT_TRUE(is_plain(fp4, "lm_head.weight"));
  const json skipped = json::parse(content("fp4/config.json"))["quantization_config"]["llm_int8_skip_modules"];
  EXPECT_EQ(skipped, (json{"down_proj", "model.layers.0.self_attn", "lm_head"}));
  const WeightIndex int8 = made("int8", {"--bits", "8"});
  EXPECT_EQ(of(int8, down_proj).type, QuantizedType::int8);
  EXPECT_TRUE(is_plain(int8, "lm_head.weight"));
}

TEST_F(Quantize, OthersReadTheFolderAndExportItDequantized) {
  made("nf4", {"--bits", "4", "--double"});
  const Outcome exported = llmtool({"export", path("nf4"), "--output", path("plain"), "--dtype", "fp32"});
  EXPECT_EQ(exported.code, 0) << exported.err;
  EXPECT_THAT(exported.err, HasSubstr("written dequantised"));
  const WeightIndex plain = read_weight_index(FolderHandle::open(path("plain")));
  EXPECT_TRUE(is_plain(plain, q_proj));
  EXPECT_FALSE(json::parse(content("plain/config.json")).contains("quantization_config"));
  // The same values, which are not the original ones.
  const std::vector<float> stored = values(path("nf4"));
  EXPECT_EQ(values(path("plain")), stored);
  EXPECT_NE(values(golden_model("llama")), stored) << "control";
}

TEST_F(Quantize, RefusesOptionsThatDoNotBelongTogether) {
  for (const std::vector<std::string>& bad :
       std::vector<std::vector<std::string>>{{},
                                             {"--bits", "3"},
                                             {"--bits", "8", "--double"},
                                             {"--bits", "8", "--type", "nf4"},
                                             {"--bits", "4", "--type", "int8"},
                                             {"--bits", "4", "--block-size", "48"},
                                             {"--bits", "8", "--block-size", "128"},
                                             {"--bits", "4", "--skip-modules", "mlp"},
                                             {"--bits", "4", "--skip-modules", "no_proj"}}) {
    const Outcome outcome = quantize("bad", bad);
    EXPECT_EQ(outcome.code, 64) << outcome.err;
  }
  EXPECT_THAT(quantize("bad", {"--bits", "4", "--skip-modules", "no_proj"}).err,
              HasSubstr("no_proj': no name of a linear layer ends with it"));
  EXPECT_EQ(files(), 0U);
}

}  // namespace
}  // namespace llmtrain
