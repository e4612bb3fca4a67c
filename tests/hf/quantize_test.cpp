// Codecs of quantised storage, compared bit for bit with bitsandbytes (tests/reference/quantization/make_codes.py).

#include "kernels/quantize.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <stdexcept>

#include "core/dtype.hpp"
#include "hf/weights/weight_index.hpp"
#include "kernels/dynamic_map.hpp"

namespace llmtrain {
namespace {

using testing::Each;
using testing::ElementsAreArray;

class QuantizedBlocks : public testing::Test {
 protected:
  template <class T>
  std::vector<T> golden(const std::string& name) const {
    const WeightIndex::Tensor* tensor = index_.find(name);
    if (tensor == nullptr) throw std::runtime_error("no golden " + name);
    std::vector<T> values(static_cast<size_t>(tensor->end - tensor->begin) / sizeof(T));
    file_.read(tensor->begin, tensor->end - tensor->begin, values.data());
    return values;
  }
  std::vector<uint8_t> codes_of(QuantizedType type, int64_t block, const std::vector<float>& values) {
    std::vector<uint8_t> codes((values.size() + 1) / 2);
    absmax_.assign(static_cast<size_t>(blocks_of(std::ssize(values), block)), 0);
    quantize_blocks(type, block, values.data(), std::ssize(values), codes.data(), absmax_.data());
    return codes;
  }
  std::vector<float> absmax_;

 private:
  FolderHandle folder_ = FolderHandle::open("tests/reference/quantization");
  WeightIndex index_ = read_weight_file(folder_, "codes.safetensors");
  FileHandle file_ = folder_.open_to_read("codes.safetensors");
};

std::vector<uint32_t> bits(std::span<const float> values) {
  std::vector<uint32_t> out;
  for (const float x : values) out.push_back(std::bit_cast<uint32_t>(x));
  return out;
}

TEST_F(QuantizedBlocks, FourBitsAreThoseOfBitsandbytes) {
  const std::vector<float> values = golden<float>("values");
  for (const QuantizedType type : {QuantizedType::nf4, QuantizedType::fp4}) {
    // Values: bitsandbytes' list has no sign on fp4's second zero, its kernels do.
    EXPECT_THAT(levels_of(type), ElementsAreArray(golden<float>(fmt::format("{}.levels", name_of(type)))));
    for (const int64_t block : {32, 64, 128, 256}) {
      const std::string name = fmt::format("{}.{}", name_of(type), block);
      SCOPED_TRACE(name);
      const std::vector<uint8_t> expected = golden<uint8_t>(name + ".codes");
      EXPECT_EQ(codes_of(type, block, values), expected);
      EXPECT_EQ(bits(absmax_), bits(golden<float>(name + ".absmax")));
      // Controls: another block size, exchanged halves of a byte.
      EXPECT_NE(codes_of(type, block == 32 ? 64 : 32, values), expected);
      if (block != 64) continue;
      codes_of(type, block, values);
      std::vector<float> back(values.size());
      std::vector<uint8_t> swapped = expected;
      for (uint8_t& code : swapped) code = static_cast<uint8_t>(code << 4 | code >> 4);
      dequantize_blocks(type, block, swapped.data(), absmax_.data(), std::ssize(values), back.data());
      EXPECT_NE(bits(back), bits(golden<float>(name + ".f32")));
      dequantize_blocks(type, block, expected.data(), absmax_.data(), std::ssize(values), back.data());
      EXPECT_EQ(bits(back), bits(golden<float>(name + ".f32")));
      for (const DType dtype : {DType::bf16, DType::f16}) {
        std::vector<uint16_t> rounded(back.size());
        round_to(dtype, back.data(), std::ssize(back), rounded.data());
        EXPECT_EQ(rounded, golden<uint16_t>(name + (dtype == DType::bf16 ? ".bf16" : ".f16")));
      }
    }
  }
}

TEST_F(QuantizedBlocks, NestedScalesAreBitsandbytes) {
  const std::vector<float> scales = golden<float>("nested.of");
  const NestedScales nested = quantize_scales(scales);
  EXPECT_EQ(nested.codes, golden<uint8_t>("nested.codes"));
  EXPECT_EQ(bits(nested.absmax), bits(golden<float>("nested.absmax")));
  EXPECT_EQ(nested.offset, golden<float>("nested.offset").front());
  std::vector<float> back, by_unsigned_map;
  for (int64_t i = 0; i < std::ssize(scales); ++i) {
    back.push_back(nested_scale(nested.codes.data(), nested.absmax.data(), nested.offset, i));
    by_unsigned_map.push_back(unsigned_dynamic_map[nested.codes[static_cast<size_t>(i)]] *
                                  nested.absmax[static_cast<size_t>(i / NestedScales::block)] +
                              nested.offset);
  }
  EXPECT_EQ(bits(back), bits(golden<float>("nested.scales")));
  EXPECT_NE(bits(by_unsigned_map), bits(golden<float>("nested.scales")));
}

TEST_F(QuantizedBlocks, DynamicMapsAndTheirNearestLevels) {
  EXPECT_EQ(bits(signed_dynamic_map), bits(golden<float>("map.signed")));
  EXPECT_EQ(bits(unsigned_dynamic_map), bits(golden<float>("map.unsigned")));
  for (const bool is_signed : {true, false}) {
    const std::string name = is_signed ? "nearest.signed" : "nearest.unsigned";
    std::vector<uint8_t> codes;
    for (const float x : golden<float>(name + ".values"))
      codes.push_back(nearest_code((is_signed ? signed_dynamic_map : unsigned_dynamic_map).data(), x));
    EXPECT_EQ(codes, golden<uint8_t>(name + ".codes")) << name;
  }
  EXPECT_EQ(nearest_code(signed_dynamic_map.data(), std::nanf("")), 0);
}

TEST_F(QuantizedBlocks, RowsOfSignedBytesAreBitsandbytes) {
  const std::vector<float> rows = golden<float>("rows"), scales = golden<float>("rows.scb");
  const int64_t count = std::ssize(scales), columns = std::ssize(rows) / count;
  std::vector<int8_t> codes(rows.size());
  std::vector<float> found(scales.size()), back(rows.size());
  quantize_rows(rows.data(), count, columns, codes.data(), found.data());
  EXPECT_EQ(codes, golden<int8_t>("rows.codes"));
  EXPECT_EQ(bits(found), bits(scales));
  dequantize_rows(codes.data(), scales.data(), count, columns, back.data());
  EXPECT_EQ(bits(back), bits(golden<float>("rows.back")));
}

TEST_F(QuantizedBlocks, ScalesShowWhatIsNotFinite) {
  std::vector<float> values(64, 0.5F);
  values[3] = std::nanf("");
  codes_of(QuantizedType::nf4, 64, values);
  EXPECT_TRUE(std::isnan(absmax_.front()));
  values[3] = -std::numeric_limits<float>::infinity();
  codes_of(QuantizedType::nf4, 64, values);
  EXPECT_TRUE(std::isinf(absmax_.front()));
  std::vector<int8_t> codes(64);
  float scale = 0;
  quantize_rows(values.data(), 1, 64, codes.data(), &scale);
  EXPECT_TRUE(std::isinf(scale));
  values.assign(33, 0);
  EXPECT_THAT(codes_of(QuantizedType::nf4, 32, values), Each(uint8_t{0x77}));
  EXPECT_THAT(absmax_, ElementsAreArray({0.F, 0.F}));
}

}  // namespace
}  // namespace llmtrain
