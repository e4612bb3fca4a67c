// Experts as GPT-OSS publishes them: tensors of all experts of a layer, also in MXFP4.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "hf/files.hpp"
#include "hf/model_files.hpp"
#include "hf/weights/fused_experts.hpp"
#include "hf/weights/stored_slice.hpp"

namespace llmtrain {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr int64_t experts = 2, width = 64, channels = 32;

class PlacedExperts : public testing::Test {
 protected:
  PlacedExperts() : folder_("placed_experts") {
    ModelConfig model = test::small_model("gpt_oss");
    model.n_layers = 1;
    model.d_model = channels;
    model.experts.count = experts;
    model.experts.d_ff = width;
    shape_ = decoder_shape(model, model.vocab_size);
    for (const std::string& bias : {first + "_bias", last + "_bias"}) {
      tensors_[bias] = {bias, StoredType::F32, {experts, bias.starts_with(first) ? 2 * width : channels}, 0, 0};
    }
  }

  void add(const std::string& name, StoredType type, std::vector<int64_t> shape) {
    tensors_[name] = {name, type, std::move(shape), 0, 0};
  }
  void add_codes() {
    add(first + "_blocks", StoredType::U8, {experts, 2 * width, channels / 32, 16});
    add(first + "_scales", StoredType::U8, {experts, 2 * width, channels / 32});
    add(last + "_blocks", StoredType::U8, {experts, channels, width / 32, 16});
    add(last + "_scales", StoredType::U8, {experts, channels, width / 32});
  }

  /// Byte i of a tensor of codes or scales.
  static int byte_of(const std::string& name, int64_t i) {
    const auto value = static_cast<int64_t>(test::element_of(name, i) * 64) + 127;  // 0 to 254
    return static_cast<int>(name.ends_with("_scales") ? 120 + value % 12 : value);
  }
  WeightIndex index() const {
    ModelFolderPlan plan;
    plan.path = folder_.at("model");
    plan.overwrite = true;
    for (const auto& [name, tensor] : tensors_) plan.tensors.push_back(tensor);
    ModelFolderWriter writer(std::move(plan));
    for (const auto& [name, tensor] : tensors_) {
      for (int64_t i = 0; i < tensor.numel(); ++i) {
        const float value = test::element_of(name, i);
        const auto byte = static_cast<uint8_t>(byte_of(name, i));
        if (tensor.type == StoredType::U8) {
          writer.write_bytes(name, i, &byte, 1);
        } else {
          writer.write(name, i, &value, 1);
        }
      }
    }
    writer.publish();
    WeightIndex index = read_weight_index(FolderHandle::open(folder_.at("model")));
    place_experts(index, shape_);
    return WeightIndex::unpacked(index.packed());
  }
  /// Elements [begin, end) of a tensor of the index; to the last one with -1.
  std::vector<float> read(const WeightIndex& index, const std::string& name, int64_t begin = 0,
                          int64_t end = -1) const {
    const WeightIndex::Tensor* tensor = index.find(name);
    EXPECT_NE(tensor, nullptr) << name;
    const FileHandle file = FolderHandle::open(folder_.at("model")).open_to_read("model.safetensors");
    const auto file_of = [&](size_t) -> const FileHandle& { return file; };
    if (end < 0) end = tensor->numel();
    std::vector<float> values(static_cast<size_t>(end - begin));
    read_slice(whole_tensor(*tensor, file_of), begin, end, values.data());
    return values;
  }
  static std::string part(int64_t expert, const std::string& name) {
    return "model.layers.0.mlp.experts." + std::to_string(expert) + "." + name;
  }

  const std::string first = "model.layers.0.mlp.experts.gate_up_proj", last = "model.layers.0.mlp.experts.down_proj";
  test::ScratchFolder folder_;
  DecoderShape shape_;
  std::map<std::string, StoredTensor> tensors_;
};

TEST_F(PlacedExperts, OutputsOfGateAndUpAlternate) {
  add(first, StoredType::F32, {experts, channels, 2 * width});
  add(last, StoredType::F32, {experts, width, channels});
  const WeightIndex index = this->index();
  for (int64_t e = 0; e < experts; ++e) {
    const auto gate = read(index, part(e, "gate_proj.weight")), up = read(index, part(e, "up_proj.weight"));
    const auto down = read(index, part(e, "down_proj.weight")), some = read(index, part(e, "up_proj.weight"), 37, 75);
    const auto up_bias = read(index, part(e, "up_proj.bias")), down_bias = read(index, part(e, "down_proj.bias"));
    for (int64_t f = 0; f < width; ++f) {
      EXPECT_EQ(up_bias[static_cast<size_t>(f)], test::element_of(first + "_bias", (e * width + f) * 2 + 1));
      for (int64_t c = 0; c < channels; ++c) {
        const auto i = static_cast<size_t>(f * channels + c);
        const int64_t stored = ((e * channels + c) * width + f) * 2;
        EXPECT_EQ(gate[i], test::element_of(first, stored));
        EXPECT_EQ(up[i], test::element_of(first, stored + 1));
        EXPECT_EQ(down[static_cast<size_t>(c * width + f)], test::element_of(last, (e * width + f) * channels + c));
      }
    }
    EXPECT_EQ(some, std::vector<float>(up.begin() + 37, up.begin() + 75));
    EXPECT_EQ(down_bias[3], test::element_of(last + "_bias", e * channels + 3));
    EXPECT_NE(gate, up) << "control";
  }
}

/// The value of a code: a sign, two bits of exponent, one of mantissa.
double code_value(int code) {
  const int exponent = code >> 1 & 3, mantissa = code & 1;
  const double size = exponent == 0 ? 0.5 * mantissa : std::ldexp(1 + 0.5 * mantissa, exponent - 1);
  return (code & 8) != 0 ? -size : size;
}

TEST_F(PlacedExperts, CodesOfMxfp4AreDequantised) {
  add_codes();
  const WeightIndex index = this->index();
  const auto expected = [&](const std::string& name, int64_t row, int64_t row_elements, int64_t column, bool swapped) {
    const int64_t element = row * row_elements + column;
    const int byte = byte_of(name + "_blocks", element / 2);
    const int code = (element % 2 != 0) != swapped ? byte >> 4 : byte & 15;
    return static_cast<float>(std::ldexp(code_value(code), byte_of(name + "_scales", element / 32) - 127));
  };
  int64_t others = 0;
  for (int64_t e = 0; e < experts; ++e) {
    const auto up = read(index, part(e, "up_proj.weight")), down = read(index, part(e, "down_proj.weight"));
    for (int64_t f = 0; f < width; ++f) {
      for (int64_t c = 0; c < channels; ++c) {
        const int64_t row = (e * width + f) * 2 + 1;
        EXPECT_EQ(up[static_cast<size_t>(f * channels + c)], expected(first, row, channels, c, false));
        others += up[static_cast<size_t>(f * channels + c)] != expected(first, row, channels, c, true) ? 1 : 0;
        EXPECT_EQ(down[static_cast<size_t>(c * width + f)], expected(last, e * channels + c, width, f, false));
      }
    }
    EXPECT_EQ(read(index, part(e, "down_proj.weight"), 45, 200),
              std::vector<float>(down.begin() + 45, down.begin() + 200));
  }
  EXPECT_GT(others, 0) << "control: the other half of each byte first";
}

TEST_F(PlacedExperts, WhatIsMissingOrWrongIsNamed) {
  const auto refusal = [&] { return test::verdict(ExitCode::bad_content, [&] { index(); }); };
  EXPECT_THAT(refusal(), AllOf(HasSubstr("missing"), HasSubstr(first), HasSubstr(last)));
  add_codes();
  EXPECT_EQ(test::verdict(ExitCode::bad_content, [&] { index(); }), "accepted") << "control";
  tensors_.erase(first + "_scales");
  EXPECT_THAT(refusal(), AllOf(HasSubstr("missing"), HasSubstr(first + "_scales")));
  add(first + "_scales", StoredType::U8, {experts, 2 * width, 2});
  EXPECT_THAT(refusal(), AllOf(HasSubstr("with another shape"), HasSubstr(first + "_scales")));
  add(first + "_scales", StoredType::F32, {experts, 2 * width, channels / 32});
  EXPECT_THAT(refusal(), AllOf(HasSubstr("with a type other than U8"), Not(HasSubstr("missing")))) << "once";
  EXPECT_EQ(refusal().find(first), refusal().rfind(first)) << refusal();
}

}  // namespace
}  // namespace llmtrain
