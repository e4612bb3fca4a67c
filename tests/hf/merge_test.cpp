// Merged adapters, compared with what PEFT's merge_and_unload makes of the same files in fp32.

#include "hf/adapters/merge.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "hf/adapters/adapter_files.hpp"
#include "hf/files.hpp"
#include "hf/weights/stored_slice.hpp"

namespace llmtrain::test {
namespace {

using ::testing::HasSubstr;

const std::string adapters = "tests/reference/adapters/", models = "tests/reference/hf/";

std::vector<float> tensor(const WeightIndex& index, const std::string& name) {
  const WeightIndex::Tensor* found = index.find(name);
  EXPECT_NE(found, nullptr) << name;
  if (found == nullptr) return {};
  const FolderHandle folder = FolderHandle::open(index.folder);
  const FileHandle file = folder.open_to_read(index.files[found->file].name);
  std::vector<float> values(static_cast<size_t>(found->numel()));
  read_slice({found, &file, found->numel(), 1, false}, 0, found->numel(), values.data());
  return values;
}

std::string model_of(const std::string& name) {
  std::ifstream file(adapters + name + "/expected.json");
  return models + nlohmann::json::parse(file)["model"].get<std::string>();
}

ExportOptions to(const std::string& output, const std::string& model) {
  ExportOptions options;
  options.output = output;
  options.texts = model_texts(model);
  return options;
}

class Merge : public ::testing::TestWithParam<const char*> {};

TEST_P(Merge, IsThatOfPeft) {
  const std::string adapter = adapters + GetParam(), model = model_of(GetParam());
  const ScratchFolder folder(unique_name("merge"));
  merge_adapter(model, adapter, to(folder.at("out"), model));
  const WeightIndex before = read_weight_index(FolderHandle::open(model));
  const WeightIndex after = read_weight_index(FolderHandle::open(folder.at("out")));
  const WeightIndex expected = read_weight_file(FolderHandle::open(adapter), "merged.safetensors");
  ASSERT_EQ(after.tensors.size(), before.tensors.size());
  size_t changed = 0;
  for (const WeightIndex::Tensor& t : after.tensors) {
    SCOPED_TRACE(t.name);
    ASSERT_NE(before.find(t.name), nullptr);
    EXPECT_EQ(t.type, before.find(t.name)->type);
    const std::vector<float> ours = tensor(after, t.name), theirs_before = tensor(before, t.name);
    if (expected.find(t.name) == nullptr) {
      // The golden has one layer; where that layer's tensor is adapted, layer 0 may be, too.
      std::string twin = t.name;
      if (const size_t layer = twin.find(".0."); layer != std::string::npos) twin[layer + 1] = '1';
      EXPECT_TRUE(expected.find(twin) != nullptr || ours == theirs_before);
      continue;
    }
    ++changed;
    const std::vector<float> theirs = tensor(expected, t.name);
    ASSERT_EQ(ours.size(), theirs.size());
    const float unit = t.type == StoredType::F32 ? 4e-7F : t.type == StoredType::BF16 ? 1.0F / 256 : 1.0F / 2048;
    float error = 0, change = 0;
    for (size_t i = 0; i < ours.size(); ++i) {
      error = std::max(error, std::abs(ours[i] - theirs[i]) / std::max(std::abs(theirs[i]), 0.25F));
      change = std::max(change, std::abs(theirs_before[i] - theirs[i]));
    }
    EXPECT_LE(error, unit);
    EXPECT_GT(change, 0.01F) << "control";
  }
  const bool tied = expected.find("lm_head.weight") != nullptr && before.find("lm_head.weight") == nullptr;
  EXPECT_EQ(changed + (tied ? 1 : 0), expected.tensors.size());
}

INSTANTIATE_TEST_SUITE_P(Adapters, Merge,
                         ::testing::Values("llama_qv", "llama_dora", "gpt2_bias", "gpt2_dora", "phi3_fused",
                                           "neox_fused", "falcon_dora", "qwen2_tied", "qwen2_part", "gemma2_layers",
                                           "qwen3_regex"),
                         [](const auto& test) { return std::string(test.param); });

TEST(MergeValues, ThatAreNotFiniteAreNamed) {
  const ScratchFolder folder(unique_name("merge-nan"));
  fs::copy(adapters + "llama_qv", folder.at("adapter"));
  std::string bytes = folder.read("adapter/adapter_model.safetensors");
  bytes.replace(bytes.size() - 4, 4, "\x7f\x7f\xff\x7f");  // a NaN
  folder.write("adapter/adapter_model.safetensors", bytes);
  const std::string model = models + "llama";
  EXPECT_THAT(
      verdict(ExitCode::bad_content, [&] { merge_adapter(model, folder.at("adapter"), to(folder.at("out"), model)); }),
      HasSubstr("adapter_model.safetensors: 'base_model.model.model.layers.1.self_attn.v_proj.lora_B.weight' has a "
                "value that is not finite"));
  EXPECT_FALSE(fs::exists(folder.at("out")));
}

TEST(MergeValues, ThatOverflowAreNamed) {
  const ScratchFolder folder(unique_name("merge-overflow"));
  fs::copy(adapters + "llama_qv", folder.at("adapter"));
  std::string bytes = folder.read("adapter/adapter_model.safetensors");
  for (size_t i = bytes.size() - 2000; i < bytes.size(); i += 4)
    bytes.replace(i, 4, std::string("\x00\x00\x7f\x7f", 4));
  folder.write("adapter/adapter_model.safetensors", bytes);
  const std::string model = models + "llama";
  EXPECT_THAT(
      verdict(ExitCode::bad_content, [&] { merge_adapter(model, folder.at("adapter"), to(folder.at("out"), model)); }),
      HasSubstr("adapter: the merged 'model.layers.0.self_attn.q_proj.weight' has a value that is not finite"));
  EXPECT_FALSE(fs::exists(folder.at("out")));
}

TEST(MergeValues, OfATiedMatrixThatWasTrainedAsOneMustBeEqual) {
  const ScratchFolder folder(unique_name("merge-tied"));
  fs::copy(adapters + "qwen2_tied", folder.at("adapter"));
  std::string bytes = folder.read("adapter/adapter_model.safetensors");
  uint64_t header = 0;
  std::memcpy(&header, bytes.data(), sizeof(header));
  char& head = bytes.at(8 + header);  // the first tensor is lm_head.weight
  head = static_cast<char>(head ^ 1);
  folder.write("adapter/adapter_model.safetensors", bytes);
  const std::string model = models + "qwen2";
  EXPECT_THAT(
      verdict(ExitCode::bad_content, [&] { merge_adapter(model, folder.at("adapter"), to(folder.at("out"), model)); }),
      HasSubstr("'base_model.model.lm_head.weight' differs from 'base_model.model.model.embed_tokens.weight'"));
  EXPECT_FALSE(fs::exists(folder.at("out")));
}

TEST(MergeBase, MustBeTheOneThatTheAdapterNames) {
  const ScratchFolder folder(unique_name("merge-base"));
  const std::string adapter = folder.at("adapter"), model = models + "llama";
  fs::copy(adapters + "llama_qv", adapter);
  const auto outcome = [&](const std::string& base, bool force, const std::string& of) {
    std::ifstream file(adapters + "llama_qv/" + adapter_config_name);
    nlohmann::json config = nlohmann::json::parse(file);
    config["base_model_name_or_path"] = base;
    folder.write(std::string("adapter/") + adapter_config_name, config.dump());
    fs::remove_all(folder.at("out"));
    return verdict(ExitCode::bad_content, [&] { merge_adapter(of, adapter, to(folder.at("out"), of), {}, force); });
  };
  for (const char* base : {"llama", "org/llama", "/elsewhere/llama/", "/c/models--org--llama/snapshots/0123abc"}) {
    EXPECT_EQ(outcome(base, false, model), "accepted") << base;
  }
  EXPECT_EQ(outcome("", false, model), "accepted");
  EXPECT_EQ(outcome(fs::absolute(model).string(), false, model), "accepted");
  EXPECT_THAT(outcome("org/llama-2", false, model), HasSubstr("the adapter was trained on 'org/llama-2'"));
  EXPECT_FALSE(fs::exists(folder.at("out")));
  EXPECT_EQ(outcome("org/llama-2", true, model), "accepted");
  EXPECT_THAT(outcome("phi3", false, models + "phi3"), HasSubstr("does not fit the model"));
}

}  // namespace
}  // namespace llmtrain::test
