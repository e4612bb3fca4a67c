// Folders in bitsandbytes' layout: those of Transformers read and written, broken ones refused.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hf/quantized/quantize_model.hpp"
#include "hf/quantized/read_quantized.hpp"
#include "hf/quantized_folders.hpp"
#include "hf/weights/weight_index.hpp"

namespace llmtrain::test {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(QuantizedFolder, OfTransformersIsReadAsItComputes) {
  for (const char* name : {"llama_nf4", "gpt2_int8"}) {
    const WeightIndex read = read_weight_index(FolderHandle::open(golden + name)), expected = expected_of(name);
    const WeightIndex sent = WeightIndex::unpacked(read.packed());  // to the ranks that read no headers
    size_t compared = 0;
    for (const WeightIndex::Tensor& tensor : expected.tensors) {
      if (!tensor.name.starts_with("dequantized.")) continue;
      const std::string weight = tensor.name.substr(12);
      SCOPED_TRACE(weight);
      ++compared;
      ASSERT_TRUE(read.find(weight) != nullptr && read.find(weight)->quantized);
      EXPECT_EQ(read.find(weight)->shape, tensor.shape);
      const std::vector<float> all = values_in(expected, tensor.name);
      EXPECT_EQ(values_in(read, weight), all);
      EXPECT_EQ(values_in(sent, weight), all);
      for (const auto& [begin, end] : std::initializer_list<std::pair<int64_t, int64_t>>{{1, 2}, {63, 65}, {5, 287}}) {
        EXPECT_EQ(values_in(read, weight, begin, end), std::vector<float>(all.begin() + begin, all.begin() + end));
      }
      EXPECT_NE(values_in(models + (name == std::string("gpt2_int8") ? "gpt2" : "llama"), weight), all) << "control";
    }
    EXPECT_EQ(compared, name == std::string("gpt2_int8") ? 4U : 7U);
  }
}

TEST(QuantizedFolder, IsWrittenAsByTransformers) {
  const ScratchFolder folder(unique_name("quantize"));
  const auto compare = [&](const std::string& name, const std::string& model, const Quantization& quantization) {
    quantize_model(model, to(folder.at(name), model), quantization, {});
    Parts ours = parts_of(folder.at(name)), theirs = parts_of(golden + name);
    ASSERT_EQ(ours.tensors.size(), theirs.tensors.size());
    for (auto& [tensor, part] : theirs.tensors) {
      SCOPED_TRACE(tensor);
      Parts::Part& own = ours.tensors[tensor];
      ASSERT_EQ(own.type, part.type);
      if (tensor.find("quant_state") != std::string::npos) {
        json state = json::parse(own.bytes), expected = json::parse(part.bytes);
        EXPECT_NEAR(state["nested_offset"], expected["nested_offset"], 1e-7);
        state["nested_offset"] = expected["nested_offset"];
        EXPECT_EQ(state, expected);
        continue;
      }
      ASSERT_EQ(own.shape, part.shape);
      // PyTorch sums scales in fp32 for the offset: a last place.
      if (tensor.ends_with("nested_absmax")) own.bytes[0] = part.bytes[0];
      EXPECT_EQ(own.bytes, part.bytes);
    }
    const auto config = [](const std::string& place) {
      std::ifstream file(place + "/config.json");
      return json::parse(file)["quantization_config"];
    };
    EXPECT_EQ(config(folder.at(name)), config(golden + name));
  };
  compare("llama_nf4", models + "llama", {});
  compare("gpt2_int8", models + "gpt2", {.type = QuantizedType::int8, .outlier_threshold = 5});
}

TEST(QuantizedFolder, OfSeveralFilesIsTheSameModel) {
  const ScratchFolder folder(unique_name("quantize-files"));
  const std::string model = models + "llama3_v4_sharded";
  ExportOptions options = to(folder.at("several"), model);
  options.file_bytes = 1800;
  quantize_model(model, options, {.type = QuantizedType::fp4, .block_size = 32}, {});
  quantize_model(model, to(folder.at("one"), model), {.type = QuantizedType::fp4, .block_size = 32}, {});
  const WeightIndex several = read_weight_index(FolderHandle::open(folder.at("several")));
  const WeightIndex one = read_weight_index(FolderHandle::open(folder.at("one")));
  ASSERT_GT(several.files.size(), 3U);
  ASSERT_EQ(one.files.size(), 1U);
  ASSERT_EQ(several.tensors.size(), one.tensors.size());
  size_t apart = 0;
  for (const WeightIndex::Tensor& tensor : several.tensors) {
    EXPECT_EQ(values_in(several, tensor.name), values_in(one, tensor.name)) << tensor.name;
    if (tensor.quantized && tensor.quantized->nested.file != tensor.quantized->scales.file) ++apart;
  }
  EXPECT_GT(apart, 0U) << "control: planes of some matrix lie in two files";
}

TEST(QuantizedReader, OfTensorsIn16BitsGivesWhatTheFolderHas) {
  const ScratchFolder folder(unique_name("quantized-reader"));
  const std::string model = models + "llama", name = "model.layers.1.mlp.down_proj.weight";
  quantize_model(model, to(folder.at("out"), model), {}, {});
  const auto read = [&](const std::string& place, const auto& use) {
    const FolderHandle handle = FolderHandle::open(place);
    const WeightIndex index = read_weight_index(handle);
    const FileHandle file = handle.open_to_read(single_weights_name);
    const WeightIndex::Tensor& tensor = *index.find(name);
    use(QuantizedReader(whole_tensor(tensor, [&](size_t) -> const FileHandle& { return file; }), {}));
  };
  std::vector<uint8_t> codes;
  NestedScales nested;
  read(folder.at("out"), [&](const QuantizedReader& stored) {
    EXPECT_TRUE(stored.is_stored());
    codes.resize(static_cast<size_t>(stored.blocks() * 32));
    stored.read_blocks(0, stored.blocks(), codes.data(), nullptr);
    nested = stored.read_nested();
  });
  read(model, [&](const QuantizedReader& made) {
    EXPECT_FALSE(made.is_stored());
    std::vector<uint8_t> own(codes.size());
    std::vector<float> scales(static_cast<size_t>(made.blocks()));
    made.read_blocks(0, 3, own.data(), scales.data());
    made.read_blocks(3, made.blocks(), own.data() + 96, scales.data() + 3);
    EXPECT_EQ(own, codes);
    const NestedScales twice = made.read_nested();
    EXPECT_EQ(twice.codes, nested.codes);
    EXPECT_EQ(twice.absmax, nested.absmax);
    EXPECT_EQ(twice.offset, nested.offset);
    EXPECT_EQ(quantize_scales(scales).codes, nested.codes);  // one pass is enough for those who keep the scales
  });
}

/// Changes one part of a folder of Transformers, and returns what reading it says.
std::string reading(const std::string& name, const std::function<void(Parts&)>& change) {
  const ScratchFolder folder(unique_name("broken"));
  Parts parts = parts_of(golden + name);
  change(parts);
  folder.write("model.safetensors", parts.written());
  return verdict(ExitCode::bad_content, [&] { read_weight_index(FolderHandle::open(folder.path())); });
}

const std::string q_proj = "model.layers.1.self_attn.q_proj.weight", c_attn = "transformer.h.1.attn.c_attn.";
const std::string state_name = q_proj + ".quant_state.bitsandbytes__nf4";

void set_state(Parts& parts, const std::string& text) {
  parts.tensors[state_name] = {"U8", {static_cast<int64_t>(text.size())}, text};
}

TEST(BrokenQuantizedFolder, NamesFileTensorAndPlane) {
  EXPECT_EQ(reading("llama_nf4", [](Parts&) {}), "accepted") << "control";
  for (const char* plane : {".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map"}) {
    EXPECT_THAT(reading("llama_nf4", [&](Parts& p) { p.tensors.erase(q_proj + plane); }),
                AllOf(HasSubstr("model.safetensors: "), HasSubstr(state_name),
                      HasSubstr("the files do not contain '" + q_proj + plane + "'")));
    // One element too few, and the same bytes under another type.
    EXPECT_THAT(reading("llama_nf4",
                        [&](Parts& p) {
                          Parts::Part& part = p.tensors.at(q_proj + plane);
                          part.bytes.resize(part.bytes.size() - part.bytes.size() / static_cast<size_t>(part.shape[0]));
                          --part.shape[0];
                        }),
                AllOf(HasSubstr("model.safetensors: '" + q_proj + plane + "'"), HasSubstr("elements of type")));
    EXPECT_THAT(reading("llama_nf4",
                        [&](Parts& p) {
                          Parts::Part& part = p.tensors.at(q_proj + plane);
                          part.type = part.type == "U8" ? "I8" : "I32";
                        }),
                AllOf(HasSubstr("'" + q_proj + plane + "'"), HasSubstr("of type I")));
  }
  EXPECT_THAT(reading("llama_nf4", [](Parts& p) { p.tensors.erase(q_proj); }),
              HasSubstr("the files do not contain '" + q_proj + "'"));
  EXPECT_THAT(reading("llama_nf4", [](Parts& p) { p.tensors.erase(state_name); }),
              AllOf(HasSubstr("'" + q_proj), HasSubstr("the files contain neither '" + state_name + "' nor")));
  EXPECT_THAT(reading("llama_nf4",
                      [](Parts& p) {
                        p.tensors.at(q_proj) = {"U8", {287, 1}, std::string(287, '\0')};
                      }),
              AllOf(HasSubstr("'" + q_proj + "'"), HasSubstr("has 287 bytes"), HasSubstr("have 288")));
  EXPECT_THAT(reading("llama_nf4", [](Parts& p) { p.tensors.at(q_proj + ".quant_map").bytes[5] ^= 0x40; }),
              AllOf(HasSubstr("'" + q_proj + ".quant_map'"), HasSubstr("not those of nf4")));
  EXPECT_THAT(reading("llama_nf4", [](Parts& p) { p.tensors.at(q_proj + ".nested_quant_map").bytes[1023] = '\x7f'; }),
              HasSubstr("not those of bitsandbytes' signed dynamic map"));
}

TEST(BrokenQuantizedFolder, NamesWhatIsWrongInTheState) {
  const auto with = [](const std::string& key, const json& value) {
    return reading("llama_nf4", [&](Parts& p) {
      json state = json::parse(p.tensors.at(state_name).bytes);
      if (value.is_null()) {
        state.erase(key);
      } else {
        state[key] = value;
      }
      set_state(p, state.dump());
    });
  };
  EXPECT_EQ(with("other", 1), "accepted") << "control";
  const auto names = [](const std::string& what) {
    return AllOf(HasSubstr("model.safetensors: '" + state_name + "'"), HasSubstr(what));
  };
  EXPECT_THAT(with("quant_type", "nf3"), names("quant_type"));
  for (const json& bad : std::initializer_list<json>{0, -64, 1 << 30, 1e300, 48, 16, "64", true, json::array(), {}}) {
    EXPECT_THAT(with("blocksize", bad), names("blocksize")) << bad;
  }
  for (const json& bad : std::initializer_list<json>{json::array({24}),
                                                     json::array({24, 24, 1}),
                                                     json::array({0, 24}),
                                                     json::array({-24, -24}),
                                                     json::array({2.5, 24}),
                                                     json::array({int64_t{1} << 40, 24}),
                                                     576,
                                                     {}}) {
    EXPECT_THAT(with("shape", bad), names("shape")) << bad;
  }
  EXPECT_THAT(with("shape", {int64_t{1} << 31, int64_t{1} << 31}), HasSubstr("has 288 bytes"));
  EXPECT_THAT(with("shape", {24, 25}), HasSubstr("has 288 bytes"));
  for (const json& bad : std::initializer_list<json>{"float64", "", 5, {}})
    EXPECT_THAT(with("dtype", bad), names("dtype"));
  for (const json& bad : std::initializer_list<json>{0, -1, 1 << 30, "256"}) {
    EXPECT_THAT(with("nested_blocksize", bad), names("nested_blocksize"));
  }
  for (const json& bad : std::initializer_list<json>{1e300, "0", {}}) {
    EXPECT_THAT(with("nested_offset", bad), names("nested_offset"));
  }
  EXPECT_THAT(with("nested_blocksize", {}), HasSubstr("needs 9 of type F32"));  // scales in bytes, said to be plain
  for (const std::string& garbage :
       {std::string("{"), std::string("[]"), std::string("\xff\xfe\0x", 4), std::string(200, '['), std::string("7")}) {
    EXPECT_THAT(reading("llama_nf4", [&](Parts& p) { set_state(p, garbage); }), HasSubstr(state_name)) << garbage;
  }
  EXPECT_THAT(reading("llama_nf4", [](Parts& p) { set_state(p, std::string(5000, ' ')); }),
              HasSubstr("at most 4096 bytes"));
  EXPECT_THAT(reading("llama_nf4",
                      [](Parts& p) {
                        p.tensors[q_proj + ".quant_state.bitsandbytes__nf5"] = p.tensors.at(state_name);
                        p.tensors.erase(state_name);
                      }),
              HasSubstr("quant_type 'nf5' is not known"));
}

TEST(BrokenQuantizedFolder, NamesWhatIsWrongWithRows) {
  EXPECT_EQ(reading("gpt2_int8", [](Parts&) {}), "accepted") << "control";
  EXPECT_THAT(reading("gpt2_int8", [](Parts& p) { p.tensors.erase(c_attn + "SCB"); }),
              AllOf(HasSubstr("'" + c_attn + "weight'"), HasSubstr("do not contain '" + c_attn + "SCB'")));
  EXPECT_THAT(reading("gpt2_int8", [](Parts& p) { p.tensors.erase(c_attn + "weight"); }),
              AllOf(HasSubstr("'" + c_attn + "SCB'"), HasSubstr("do not contain '" + c_attn + "weight'")));
  EXPECT_THAT(reading("gpt2_int8",
                      [](Parts& p) {
                        p.tensors.at(c_attn + "SCB") = {"F32", {71}, std::string(284, '\0')};
                      }),
              HasSubstr("has 71 elements of type F32; its quantised matrix needs 72"));
  EXPECT_THAT(reading("gpt2_int8", [](Parts& p) { p.tensors.at(c_attn + "weight").type = "U8"; }),
              HasSubstr("must be [rows, columns] of type I8"));
  EXPECT_THAT(reading("gpt2_int8", [](Parts& p) { p.tensors.at(c_attn + "weight").shape = {72 * 24}; }),
              HasSubstr("must be [rows, columns] of type I8"));
  EXPECT_THAT(reading("gpt2_int8", [](Parts& p) { p.tensors.at(c_attn + "weight_format").bytes = "\x01"; }),
              HasSubstr("only the format 0 (rows) is supported"));
}

TEST(QuantizedFolder, RefusesWhatItCannotQuantize) {
  const ScratchFolder folder(unique_name("quantize-bad"));
  const std::string nf4 = golden + "llama_nf4";
  EXPECT_THAT(verdict(ExitCode::bad_content, [&] { quantize_model(nf4, to(folder.at("out"), nf4), {}, {}); }),
              HasSubstr("is quantised already (nf4)"));
  fs::copy(models + "llama", folder.at("nan"));
  Parts parts = parts_of(models + "llama");
  parts.tensors.at(q_proj).bytes.replace(0, 4, std::string("\0\0\xc0\x7f", 4));
  folder.write("nan/model.safetensors", parts.written());
  for (const QuantizedType type : {QuantizedType::nf4, QuantizedType::int8}) {
    EXPECT_THAT(
        verdict(ExitCode::bad_content,
                [&] { quantize_model(folder.at("nan"), to(folder.at("out"), folder.at("nan")), {.type = type}, {}); }),
        AllOf(HasSubstr("model.safetensors: '" + q_proj + "'"), HasSubstr("not finite")));
  }
  EXPECT_FALSE(fs::exists(folder.at("out")));
}

}  // namespace
}  // namespace llmtrain::test
