// Folders of matrices of 4 bits in the layouts of GPTQ and AutoAWQ: read as their own modules compute, broken ones
// refused by file and tensor.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "hf/config/config_json.hpp"
#include "hf/quantized_folders.hpp"
#include "hf/weights/weight_index.hpp"

namespace llmtrain::test {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

json config_of(const std::string& name) {
  std::ifstream file(golden + name + "/config.json");
  return json::parse(file);
}

/// A folder of goldens, changed.
void write_changed(const ScratchFolder& folder, const std::string& name, const std::function<void(Parts&)>& change,
                   const json& quantization = {}) {
  Parts parts = parts_of(golden + name);
  change(parts);
  json config = config_of(name);
  if (!quantization.is_null()) config["quantization_config"].update(quantization);
  folder.write("model.safetensors", parts.written());
  folder.write("config.json", config.dump());
}

TEST(PackedFolder, IsReadAsItsModulesCompute) {
  for (const std::string name : {"llama_gptq", "llama_gptq_v2", "llama_awq"}) {
    const WeightIndex read = read_weight_index(FolderHandle::open(golden + name)), expected = expected_of(name);
    const WeightIndex sent = WeightIndex::unpacked(read.packed());  // to the ranks that read no headers
    ASSERT_EQ(expected.tensors.size(), 2U);
    for (const WeightIndex::Tensor& tensor : expected.tensors) {
      const std::string weight = tensor.name.substr(12);
      SCOPED_TRACE(weight);
      ASSERT_TRUE(read.find(weight) != nullptr && read.find(weight)->packed);
      EXPECT_EQ(read.find(weight)->storage(), name == "llama_awq" ? "awq" : "gptq");
      EXPECT_EQ(read.find(weight)->shape, tensor.shape);
      const std::vector<float> all = values_in(expected, tensor.name);
      EXPECT_EQ(values_in(read, weight), all);
      EXPECT_EQ(values_in(sent, weight), all);
      for (const auto& [begin, end] : std::initializer_list<std::pair<int64_t, int64_t>>{{1, 2}, {31, 65}, {5, 1019}}) {
        EXPECT_EQ(values_in(read, weight, begin, end), std::vector<float>(all.begin() + begin, all.begin() + end));
      }
    }
  }
}

// Parts of a matrix that ranks share, whose first row and column lie within a word.
TEST(PackedFolder, BlocksAreThoseOfTheMatrix) {
  const std::string weight = "model.layers.1.mlp.down_proj.weight";
  for (const char* name : {"llama_gptq", "llama_awq"}) {
    const FolderHandle folder = FolderHandle::open(golden + name);
    const WeightIndex index = read_weight_index(folder);
    const FileHandle file = folder.open_to_read(single_weights_name);
    const std::vector<float> all = values_in(index, weight);
    const WeightIndex::Tensor& tensor = *index.find(weight);
    const int64_t columns = tensor.shape[1];
    const auto file_of = [&](size_t) -> const FileHandle& { return file; };
    const StoredSlice part = stored_slice(tensor, file_of, 5, 21, false, TensorBlock{11, 13, 5, 21});
    std::vector<float> values(5 * 21 - 3);
    read_slice(part, 2, 5 * 21 - 1, values.data());
    for (int64_t i = 2; i < 5 * 21 - 1; ++i) {
      const int64_t row = 11 + i / 21, column = 13 + i % 21;
      ASSERT_EQ(values[static_cast<size_t>(i - 2)], all[static_cast<size_t>(row * columns + column)]) << name << i;
    }
  }
}

// checkpoint_format decides on zero points, and the group of an input on its scale.
TEST(PackedFolder, ReadsVersionsAndGroupsApart) {
  const std::string module = "model.layers.1.self_attn.k_proj.";
  const std::vector<float> all = values_in(golden + "llama_gptq", module + "weight");
  const auto changed = [&](const std::function<void(Parts&)>& change, const json& quantization) {
    const ScratchFolder folder(unique_name("packed"));
    write_changed(folder, "llama_gptq", change, quantization);
    return values_in(folder.path(), module + "weight");
  };
  const auto nothing = [](Parts&) {};
  EXPECT_EQ(changed(nothing, {{"checkpoint_format", "gptq"}}), all);
  EXPECT_NE(changed(nothing, {{"checkpoint_format", "gptq_v2"}}), all) << "control";
  const auto add_ones = [&](Parts& p) {
    std::string& bytes = p.tensors.at(module + "qzeros").bytes;
    for (char& byte : bytes) byte = static_cast<char>(static_cast<uint8_t>(byte) + 0x11);
  };
  EXPECT_EQ(changed(add_ones, {{"checkpoint_format", "gptq_v2"}}), all);
  const auto no_groups = [&](Parts& p) { p.tensors.erase(module + "g_idx"); };
  EXPECT_NE(changed(no_groups, {{"desc_act", false}}), all) << "groups in order";
  EXPECT_THROW(changed(no_groups, {}), UserError) << "desc_act: the groups are missing";
}

std::string reading(const std::string& name, const std::function<void(Parts&)>& change, const json& quantization = {}) {
  const ScratchFolder folder(unique_name("broken"));
  write_changed(folder, name, change, quantization);
  return verdict(ExitCode::bad_content, [&] { read_weight_index(FolderHandle::open(folder.path())); });
}

TEST(BrokenPackedFolder, NamesFileAndTensor) {
  const std::string module = "model.layers.1.self_attn.q_proj.";
  for (const std::string name : {"llama_gptq", "llama_awq"}) {
    SCOPED_TRACE(name);
    EXPECT_EQ(reading(name, [](Parts&) {}), "accepted") << "control";
    for (const char* plane : {"scales", "qzeros"}) {
      EXPECT_THAT(reading(name, [&](Parts& p) { p.tensors.erase(module + plane); }),
                  AllOf(HasSubstr("model.safetensors: '" + module + "qweight'"),
                        HasSubstr("do not contain '" + module + plane + "'")));
      EXPECT_THAT(reading(name,
                          [&](Parts& p) {
                            Parts::Part& part = p.tensors.at(module + plane);
                            part.bytes.resize(part.bytes.size() / 2);
                            part.shape[0] /= 2;
                          }),
                  AllOf(HasSubstr("model.safetensors: '" + module + plane + "'"), HasSubstr("instead of [2, ")));
    }
    EXPECT_THAT(reading(name, [&](Parts& p) { p.tensors.at(module + "qweight").type = "F32"; }),
                AllOf(HasSubstr("'" + module + "qweight'"), HasSubstr("F32 instead of I32")));
    EXPECT_THAT(reading(name, [&](Parts& p) { p.tensors.at(module + "qweight").shape = {128}; }),
                AllOf(HasSubstr("'" + module + "qweight'"), HasSubstr("it is [128]")));
    EXPECT_THAT(reading(name, [&](Parts& p) { p.tensors.at(module + "qzeros").type = "U32"; }),
                AllOf(HasSubstr("'" + module + "qzeros'"), HasSubstr("U32 instead of I32")));
    EXPECT_THAT(reading(name, [&](Parts& p) { p.tensors.erase(module + "qweight"); }),
                AllOf(HasSubstr("model.safetensors: '" + module), HasSubstr("do not contain '" + module + "qweight'")));
    EXPECT_THAT(reading(name,
                        [&](Parts& p) {
                          p.tensors[module + "weight"] = {"F16", {32, 32}, std::string(2048, '\0')};
                        }),
                AllOf(HasSubstr("'" + module + "qweight'"), HasSubstr("in 16 bits, too")));
    EXPECT_THAT(reading(name, [](Parts&) {}, {{"quant_method", "other"}}), HasSubstr("quant_method gptq or awq"));
    EXPECT_THAT(reading(name, [](Parts&) {}, {{"group_size", 8}}), HasSubstr("instead of [8, "));
  }
  for (const int32_t group : {-1, 2, 1 << 30}) {
    EXPECT_THAT(reading("llama_gptq",
                        [&](Parts& p) {
                          std::memcpy(p.tensors.at(module + "g_idx").bytes.data() + 4 * 7, &group, sizeof(group));
                        }),
                AllOf(HasSubstr("model.safetensors: g_idx of '" + module), HasSubstr(fmt::format("group {} ", group)),
                      HasSubstr("input 7")));
  }
  // 8 bits have twice the words.
  EXPECT_THAT(reading("llama_gptq",
                      [&](Parts& p) {
                        Parts::Part& part = p.tensors.at(module + "qweight");
                        part.bytes += part.bytes;
                        part.shape[0] *= 2;
                      }),
              HasSubstr("'" + module + "scales': it is [2, 32] instead of [4, 32]"));
  EXPECT_THAT(reading("llama_awq",
                      [&](Parts& p) {
                        p.tensors[module + "g_idx"] = {"I32", {1}, std::string(4, '\0')};
                      }),
              AllOf(HasSubstr("'" + module + "g_idx'"), HasSubstr("has no such tensor")));
}

TEST(BrokenPackedFolder, OtherLayoutsAreRefusedByName) {
  const auto config = [](const std::string& name, const std::string& key, const json& value) {
    json document = config_of(name);
    document["quantization_config"][key] = value;
    return verdict(ExitCode::bad_content, [&] { parse_hf_config(document.dump(), "config.json"); });
  };
  EXPECT_EQ(config("llama_awq", "version", "GEMM"), "accepted") << "control";
  EXPECT_EQ(config("llama_gptq", "damp_percent", 0.1), "accepted") << "control";
  for (const char* kind : {"gemv", "gemv_fast", "marlin", "llm-awq"}) {
    EXPECT_THAT(config("llama_awq", "version", kind),
                AllOf(HasSubstr("config.json: quantization_config: version"), HasSubstr(kind), HasSubstr("gemm")));
    EXPECT_THAT(config("llama_gptq", "checkpoint_format", kind),
                AllOf(HasSubstr("quantization_config: checkpoint_format"), HasSubstr(kind), HasSubstr("gptq_v2")));
  }
  EXPECT_THAT(config("llama_gptq", "bits", 8), HasSubstr("bits: must be 4"));
  EXPECT_THAT(config("llama_awq", "zero_point", false), HasSubstr("zero_point: must be true"));
  for (const json& size : std::initializer_list<json>{0, -2, "128", 1e30}) {
    EXPECT_THAT(config("llama_gptq", "group_size", size), HasSubstr("group_size"));
  }
}

}  // namespace
}  // namespace llmtrain::test
