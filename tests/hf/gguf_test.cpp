// GGUF files have the tensors, bit for bit, and the keys that llama.cpp's converter writes for the same models, and the
// vocabulary of their tokenizer; models that llama.cpp cannot compute are refused.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "hf/files.hpp"
#include "hf/gguf/export_gguf.hpp"
#include "hf/gguf/gguf_model.hpp"
#include "hf/model_files.hpp"
#include "hf/weights/stored_slice.hpp"

namespace llmtrain {
namespace {

using nlohmann::json;
using testing::HasSubstr;

/// A GGUF file, read by its specification.
class GgufFile {
 public:
  struct Tensor {
    std::vector<uint64_t> dims;
    uint32_t type;
    std::string bytes;
    bool operator==(const Tensor&) const = default;
  };

  explicit GgufFile(std::string bytes) : bytes_(std::move(bytes)) {
    EXPECT_EQ(bytes_.substr(0, 4), "GGUF");
    at_ = 4;
    EXPECT_EQ(take<uint32_t>(), 3U);
    const auto tensor_count = take<uint64_t>(), keys_count = take<uint64_t>();
    for (uint64_t k = 0; k < keys_count; ++k) {
      const std::string key = text();
      keys[key] = value(take<uint32_t>());
    }
    std::vector<std::pair<std::string, uint64_t>> offsets;
    for (uint64_t t = 0; t < tensor_count; ++t) {
      const std::string name = text();
      Tensor& tensor = tensors[name];
      tensor.dims.resize(take<uint32_t>());
      for (uint64_t& dim : tensor.dims) dim = take<uint64_t>();
      tensor.type = take<uint32_t>();
      offsets.emplace_back(name, take<uint64_t>());
    }
    const size_t data = (at_ + 31) / 32 * 32;
    for (const auto& [name, offset] : offsets) {
      EXPECT_EQ(offset % 32, 0U) << name;
      tensors[name].bytes = bytes_.substr(data + offset, size_of_tensor(tensors[name]));
    }
  }

  std::map<std::string, json> keys;
  std::map<std::string, Tensor> tensors;

 private:
  template <class T>
  T take() {
    T result;
    std::memcpy(&result, bytes_.data() + at_, sizeof result);
    at_ += sizeof result;
    return result;
  }
  std::string text() {
    const auto length = take<uint64_t>();
    at_ += length;
    return bytes_.substr(at_ - length, length);
  }
  json value(uint32_t type) {
    if (type == 4) return take<uint32_t>();
    if (type == 5) return take<int32_t>();
    if (type == 6) return take<float>();
    if (type == 7) return take<uint8_t>() != 0;
    if (type == 8) return text();
    EXPECT_EQ(type, 9U);
    const auto of = take<uint32_t>();
    json list = json::array();
    for (auto count = take<uint64_t>(); count > 0; --count) list.push_back(value(of));
    return list;
  }
  static size_t size_of_tensor(const Tensor& tensor) {
    uint64_t elements = 1;
    for (const uint64_t dim : tensor.dims) elements *= dim;
    return tensor.type == 0 ? 4 * elements : tensor.type == 8 ? elements / 32 * 34 : 2 * elements;
  }

  std::string bytes_;
  size_t at_ = 0;
};

std::string fnv(const std::string& bytes) {
  uint64_t value = 0xCBF29CE484222325;
  for (const char c : bytes) value = (value ^ static_cast<uint8_t>(c)) * 0x100000001B3;
  return fmt::format("{:016x}", value);
}

std::string reference(const std::string& path) { return "tests/reference/" + path; }

std::vector<float> stored_values(const std::string& model, const std::string& name) {
  const FolderHandle folder = FolderHandle::open(reference("hf/" + model));
  const WeightIndex index = read_weight_index(folder);
  const WeightIndex::Tensor& tensor = *index.find(name);
  const FileHandle file = folder.open_to_read(index.files[tensor.file].name);
  std::vector<float> values(static_cast<size_t>(tensor.numel()));
  read_slice(whole_tensor(tensor, [&](size_t) -> const FileHandle& { return file; }), 0, tensor.numel(), values.data());
  return values;
}

class Gguf : public testing::Test {
 protected:
  /// Converts a model of tests/reference/hf.
  GgufFile convert(const std::string& model, std::optional<GgufType> type) {
    GgufOptions options;
    options.output = folder_.at("model.gguf");
    options.overwrite = true;
    options.type = type;
    warnings_ = convert_to_gguf(reference("hf/" + model), options);
    return GgufFile(folder_.read("model.gguf"));
  }

  test::ScratchFolder folder_{test::unique_name("gguf")};
  std::vector<std::string> warnings_;
};

TEST_F(Gguf, EqualsLlamaCppsConverterBitForBit) {
  const json goldens = json::parse(std::ifstream(reference("gguf/goldens.json")));
  int cases = 0;
  for (const auto& [name, golden] : goldens.items()) {
    if (name == "made_by") continue;
    const std::string model = name.substr(0, name.find(' '));
    const GgufFile file = convert(model, gguf_type_of(name.substr(name.find(' ') + 1)));
    EXPECT_EQ(file.tensors.size(), golden["tensors"].size()) << name;
    for (const auto& [tensor, expected] : golden["tensors"].items()) {
      ASSERT_TRUE(file.tensors.contains(tensor)) << name << ' ' << tensor;
      const GgufFile::Tensor& found = file.tensors.at(tensor);
      EXPECT_EQ((json{found.dims, found.type, fnv(found.bytes)}), expected) << name << ' ' << tensor;
    }
    EXPECT_EQ(file.keys.at("general.architecture"), golden["architecture"]);
    for (const auto& [key, expected] : golden["keys"].items()) {
      // Ours is the length that llama3's scaling reaches, where config.json has the one before it.
      if (model == "llama3_v4_sharded" && key == "llama.context_length") continue;
      if (key == "falcon.context_length") continue;  // llama.cpp's is that of the published models
      EXPECT_EQ(file.keys.at(key), expected) << name << ' ' << key;
    }
    ++cases;
  }
  EXPECT_EQ(cases, 76);
}

/// Control of the comparison: the rows of llama's queries are in another order than in the folder, its values are not.
TEST_F(Gguf, RowsOfLlamasQueriesAreMoved) {
  const GgufFile llama = convert("llama", GgufType::F32), qwen = convert("qwen3", GgufType::F32);
  const auto floats = [](const GgufFile& file, const char* name) {
    const std::string& bytes = file.tensors.at(name).bytes;
    std::vector<float> values(bytes.size() / 4);
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  };
  const std::string queries = "model.layers.0.self_attn.q_proj.weight";
  std::vector<float> moved = floats(llama, "blk.0.attn_q.weight"), own = stored_values("llama", queries);
  EXPECT_NE(moved, own);
  std::ranges::sort(moved);
  std::ranges::sort(own);
  EXPECT_EQ(moved, own);
  EXPECT_EQ(floats(qwen, "blk.0.attn_q.weight"), stored_values("qwen3", queries));
}

TEST_F(Gguf, TypeOfTheFolderIsKept) {
  EXPECT_EQ(convert("phi3", std::nullopt).tensors.at("token_embd.weight").type, 1U);
  EXPECT_EQ(convert("qwen2", std::nullopt).tensors.at("token_embd.weight").type, 30U);
  EXPECT_THAT(warnings_.front(), HasSubstr("not to a window of 6"));
}

GgufFile vocabulary_of(const Tokenizer& tokenizer, int64_t rows, test::ScratchFolder& folder) {
  GgufMetadata metadata;
  add_vocabulary(metadata, tokenizer, rows);
  GgufWriter(folder.at("vocabulary.gguf"), true, metadata, {}).publish();
  return GgufFile(folder.read("vocabulary.gguf"));
}

TEST_F(Gguf, CharacterIsATokenOfItsBytes) {
  const auto tokenizer = make_char_tokenizer({U'\n', U'a', U'\u00e9', U'\u65e5'});
  const GgufFile file = vocabulary_of(*tokenizer, 7, folder_);
  EXPECT_EQ(file.keys.at("tokenizer.ggml.model"), "gpt2");
  EXPECT_EQ(file.keys.at("tokenizer.ggml.tokens"),
            (json{"\u010a", "a", "\u00c3\u00a9", "\u00e6\u0139\u00a5", "<|endoftext|>", "[PAD5]", "[PAD6]"}));
  EXPECT_EQ(file.keys.at("tokenizer.ggml.merges"), (json{"\u00c3 \u00a9", "\u00e6 \u0139", "\u00e6\u0139 \u00a5"}));
  EXPECT_EQ(file.keys.at("tokenizer.ggml.token_type"), (json{1, 1, 1, 1, 3, 5, 5}));
  EXPECT_EQ(file.keys.at("tokenizer.ggml.eos_token_id"), 4);
  EXPECT_EQ(file.keys.at("tokenizer.ggml.add_bos_token"), false);
}

TEST_F(Gguf, BytesAreByteLevelTokens) {
  const GgufFile file = vocabulary_of(*make_byte_tokenizer(), 257, folder_);
  EXPECT_EQ(file.keys.at("tokenizer.ggml.tokens").at(10), "\u010a");
  EXPECT_EQ(file.keys.at("tokenizer.ggml.merges"), json::array());
  EXPECT_EQ(file.keys.at("tokenizer.ggml.pre"), "gpt-2");
}

TEST_F(Gguf, NamesWhatLlamaCppCannotCompute) {
  ModelConfig model = test::small_model("llama");
  EXPECT_EQ(gguf_obstacle(model), "");
  model.rope_scaling.kind = RopeScaling::Kind::dynamic;
  EXPECT_EQ(gguf_obstacle(model), "dynamic rope scaling");
  model = test::small_model("llama");
  model.attention_sinks = true;
  EXPECT_THAT(gguf_obstacle(model), HasSubstr("sinks of attention"));
  model = test::small_model("qwen3");
  model.activation = ModelConfig::Activation::geglu;
  EXPECT_EQ(gguf_obstacle(model), "the activation geglu");
  model = test::small_model("gemma2");
  model.final_softcap = 0;
  EXPECT_EQ(gguf_obstacle(model), "Gemma 2 without softcaps");
  model = test::small_model("qwen3_moe");
  model.experts.norm_topk = true;
  EXPECT_EQ(gguf_obstacle(model), "");
  model.experts.norm_topk = false;
  EXPECT_EQ(gguf_obstacle(model), "norm_topk = false in this family");
  model.experts.dense_layers = {1};
  EXPECT_EQ(gguf_obstacle(model), "layers without experts");
  model = test::small_model("smollm3");
  EXPECT_EQ(gguf_obstacle(model), "");
  model.no_rope_layers = {1};
  EXPECT_THAT(gguf_obstacle(model), HasSubstr("layers without positions"));
  model = test::small_model("llama");
  model.residual_multiplier = 0.5;
  EXPECT_EQ(gguf_obstacle(model), "factors on branches or logits");
  model = test::small_model("gpt_neox");
  EXPECT_EQ(gguf_obstacle(model), "");
  model.tie_embeddings = true;
  EXPECT_EQ(gguf_obstacle(model), "a GPT-NeoX with a tied head");
  model = test::small_model("falcon");
  model.parallel_residual = model.shared_norm = false;
  EXPECT_THAT(gguf_obstacle(model), HasSubstr("branches follow each other"));
  model = test::small_model("gemma3_text");
  model.sliding_window_layers = {0};
  EXPECT_THAT(gguf_obstacle(model), HasSubstr("five of six"));
  model = test::small_model("deepseek_v2");
  EXPECT_THAT(gguf_obstacle(model), HasSubstr("experts of this family"));
  model.experts = {};
  EXPECT_THAT(gguf_obstacle(model), HasSubstr("latent attention"));
}

// The converter has no test model of this family whose layers all have experts.
TEST_F(Gguf, NamesASharedExpert) {
  const ModelConfig model = test::small_model("qwen2_moe");
  const DecoderShape shape = decoder_shape(model, model.vocab_size);
  const auto name = [&](const std::string& module) { return gguf_slice(shape, "model.layers.1.mlp." + module).name; };
  EXPECT_EQ(name("gate.weight"), "blk.1.ffn_gate_inp.weight");
  EXPECT_EQ(name("shared_expert.up_proj.weight"), "blk.1.ffn_up_shexp.weight");
  EXPECT_EQ(name("experts.2.down_proj.weight"), "blk.1.ffn_down_exps.weight");
  const GgufSlice gate = gguf_slice(shape, "model.layers.1.mlp.shared_expert_gate.weight");
  EXPECT_EQ(gate.name, "blk.1.ffn_gate_inp_shexp.weight");
  EXPECT_TRUE(gate.as_vector);
}

TEST_F(Gguf, AFileIsReplacedOnlyOnRequest) {
  folder_.write("there.gguf", "x");
  GgufOptions options;
  options.output = folder_.at("there.gguf");
  const auto convert_again = [&] { convert_to_gguf(reference("hf/llama"), options); };
  EXPECT_THAT(test::verdict(ExitCode::cannot_create, convert_again), HasSubstr("it already exists"));
  EXPECT_EQ(folder_.read("there.gguf"), "x");
  options.overwrite = true;
  convert_again();
  EXPECT_EQ(folder_.read("there.gguf").substr(0, 4), "GGUF");
  EXPECT_FALSE(std::filesystem::exists(folder_.at("there.gguf.partial")));
}

}  // namespace
}  // namespace llmtrain
