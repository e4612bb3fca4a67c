// Adapters merged into quantised models, and what names the weights that they were trained on.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "hf/adapters/adapter_files.hpp"
#include "hf/adapters/merge.hpp"
#include "hf/quantized/quantize_model.hpp"
#include "hf/quantized_folders.hpp"

namespace llmtrain::test {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;

const std::string llama_adapter = "tests/reference/adapters/llama_qv";

std::vector<float> transposed(const std::vector<float>& values, int64_t rows) {
  const auto columns = std::ssize(values) / rows;
  std::vector<float> out;
  for (int64_t c = 0; c < columns; ++c) {
    for (int64_t r = 0; r < rows; ++r) out.push_back(values[static_cast<size_t>(r * columns + c)]);
  }
  return out;
}

struct MergeCase {
  std::string folder, model, adapter;
  bool transposed;  ///< in the model's files
  float unit;       ///< of the type of the written values
};
class QuantizedMerge : public testing::TestWithParam<MergeCase> {};

TEST_P(QuantizedMerge, IsThatOfPeftOnDequantizedWeights) {
  const MergeCase& one = GetParam();
  const ScratchFolder folder(unique_name("merge-quantized"));
  const std::string base = golden + one.folder, adapter = "tests/reference/adapters/" + one.adapter;
  const std::vector<std::string> warnings =
      merge_adapter(base, adapter, to(folder.at("out"), base), {}, false, MergeBase::dequantized);
  EXPECT_THAT(warnings, Contains(HasSubstr("written dequantised")));
  merge_adapter(models + one.model, adapter, to(folder.at("original"), models + one.model));
  convert_model(base, to(folder.at("exported"), base));
  const WeightIndex expected = expected_of(one.folder);
  size_t merged = 0;
  for (const WeightIndex::Tensor& tensor : expected.tensors) {
    const bool adapted = tensor.name.starts_with("merged.");
    const std::string weight = tensor.name.substr(tensor.name.find('.') + 1);
    SCOPED_TRACE(tensor.name);
    std::vector<float> theirs = values_in(expected, tensor.name);
    if (!adapted && one.transposed) theirs = transposed(theirs, tensor.shape[0]);
    const std::vector<float> ours = values_in(folder.at(adapted ? "out" : "exported"), weight);
    const std::vector<float> original =
        adapted ? values_in(folder.at("original"), weight) : values_in(models + one.model, weight);
    ASSERT_TRUE(ours.size() == theirs.size() && ours.size() == original.size());
    float error = 0, control = 0;
    for (size_t i = 0; i < ours.size(); ++i) {
      error = std::max(error, std::abs(ours[i] - theirs[i]) / std::max(std::abs(theirs[i]), 0.25F));
      control = std::max(control, std::abs(original[i] - theirs[i]) / std::max(std::abs(theirs[i]), 0.25F));
    }
    EXPECT_LE(error, one.unit);
    EXPECT_GT(control, 4 * one.unit) << "the weights from before they were quantised";
    if (adapted) ++merged;
  }
  EXPECT_EQ(merged, 2U);
  for (const char* written : {"out/config.json", "exported/config.json"}) {
    EXPECT_EQ(folder.read(written).find("quantization_config"), std::string::npos);
  }
}

INSTANTIATE_TEST_SUITE_P(Folders, QuantizedMerge,
                         testing::Values(MergeCase{"llama_nf4", "llama", "llama_qv", false, 4e-7F},
                                         MergeCase{"gpt2_int8", "gpt2", "gpt2_bias", true, 1.F / 2048}),
                         [](const auto& test) { return test.param.folder; });

TEST(MergeOfQuantized, KeepsAStoredHeadOfATiedModel) {
  const ScratchFolder folder(unique_name("merge-head"));
  const std::string original = models + "qwen2", model = folder.at("qwen2");
  quantize_model(original, to(model, original), {}, {});
  Parts parts = parts_of(model);
  const std::vector<int64_t> shape = parts.tensors.at("model.embed_tokens.weight").shape;
  std::string codes;
  std::vector<float> scales, values;
  for (int64_t row = 0; row < shape[0]; ++row) {
    scales.push_back(static_cast<float>(row + 1));
    for (int64_t column = 0; column < shape[1]; ++column) {
      codes += static_cast<char>((row * 7 + column * 3) % 255 - 127);
      values.push_back(static_cast<float>(static_cast<int8_t>(codes.back())) * scales.back() * 7.874015718698502e-3F);
    }
  }
  parts.tensors["lm_head.weight"] = {"I8", shape, codes};
  parts.tensors["lm_head.SCB"] = {
      "F32", {shape[0]}, std::string(reinterpret_cast<const char*>(scales.data()), 4 * scales.size())};
  folder.write("qwen2/model.safetensors", parts.written());
  merge_adapter(model, "tests/reference/adapters/qwen2_part", to(folder.at("out"), model), {}, false,
                MergeBase::dequantized);
  const std::vector<float> head = values_in(folder.at("out"), "lm_head.weight");
  ASSERT_EQ(head.size(), values.size());
  for (size_t i = 0; i < head.size(); ++i) EXPECT_NEAR(head[i], values[i], 1e-3F * std::abs(values[i]));  // fp16
}

TEST(MergeOfQuantized, NeedsItsBaseNamed) {
  const ScratchFolder folder(unique_name("merge-named"));
  const std::string quantized = golden + "llama_nf4", original = models + "llama";
  std::vector<std::string> warnings;
  const auto merge = [&](const std::string& model, const std::string& adapter, MergeBase base) {
    fs::remove_all(folder.at("out"));
    return verdict(ExitCode::bad_content,
                   [&] { warnings = merge_adapter(model, adapter, to(folder.at("out"), model), {}, false, base); });
  };
  EXPECT_THAT(merge(quantized, llama_adapter, MergeBase::unnamed), HasSubstr("Give --base dequantized"));
  EXPECT_THAT(merge(quantized, llama_adapter, MergeBase::bits16), HasSubstr("Give --base dequantized"));
  EXPECT_THAT(merge(original, llama_adapter, MergeBase::dequantized), HasSubstr("not quantised"));
  EXPECT_FALSE(fs::exists(folder.at("out")));

  // An adapter whose model is a quantised folder on this machine, and one whose metadata say so.
  const std::string adapter = folder.at("adapter");
  fs::copy(llama_adapter, adapter);
  json config = json::parse(folder.read("adapter/adapter_config.json"));
  config["base_model_name_or_path"] = fs::absolute(quantized).string();
  folder.write("adapter/adapter_config.json", config.dump());
  EXPECT_THAT(merge(original, adapter, MergeBase::unnamed),
              AllOf(HasSubstr("was trained on quantised ones"), HasSubstr("--base 16bit")));
  EXPECT_EQ(merge(original, adapter, MergeBase::bits16), "accepted");
  EXPECT_THAT(warnings, Contains(HasSubstr("nothing shows that the two are one model")));
  EXPECT_EQ(merge(quantized, adapter, MergeBase::dequantized), "accepted");

  fs::remove_all(adapter);
  fs::copy(llama_adapter, adapter);
  const auto set_metadata = [&](const std::string& quantization) {
    const std::string bytes = folder.read("adapter/adapter_model.safetensors");
    uint64_t length = 0;
    std::memcpy(&length, bytes.data(), sizeof(length));
    json header = json::parse(bytes.substr(8, length));
    header["__metadata__"][base_hash_key] = "0123456789abcdef";
    header["__metadata__"][base_quantization_key] = quantization;
    const std::string text = header.dump();
    folder.write("adapter/adapter_model.safetensors", safetensors_bytes(text, 0) + bytes.substr(8 + length));
  };
  set_metadata(description_of({}));
  EXPECT_THAT(merge(original, adapter, MergeBase::unnamed), HasSubstr("('nf4 in blocks of 64, doubly quantised')"));
  EXPECT_EQ(merge(original, adapter, MergeBase::bits16), "accepted");
  EXPECT_EQ(merge(quantized, adapter, MergeBase::dequantized), "accepted");
  EXPECT_THAT(warnings, Contains(HasSubstr("nothing shows that")));
  set_metadata(description_of({.type = QuantizedType::fp4, .double_quantization = false}));
  EXPECT_THAT(merge(quantized, adapter, MergeBase::dequantized),
              HasSubstr("quantised to nf4 in blocks of 64, doubly quantised"));
}

}  // namespace
}  // namespace llmtrain::test
