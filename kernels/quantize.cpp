#include "kernels/quantize.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>

#include "core/dtype.hpp"
#include "core/error.hpp"
#include "kernels/dynamic_map.hpp"
#include "kernels/int8_arithmetic.hpp"
#include "kernels/quantized_matrix.hpp"
#include "kernels/rounded_product.hpp"

namespace llmtrain {

const DynamicMap signed_dynamic_map = make_dynamic_map(true);
const DynamicMap unsigned_dynamic_map = make_dynamic_map(false);

namespace {

// Quantiles of the normal distribution, as bitsandbytes stores them; its fp4 has a sign, two bits of exponent and one
// of mantissa, divided by the largest magnitude (12).
constexpr std::array<float, 16> nf4_levels{
    -1.F,       -0.69619280F, -0.52507305F, -0.39491749F, -0.28444138F, -0.18477343F, -0.091050036F, 0.F,
    0.0795803F, 0.1609302F,   0.2461123F,   0.33791524F,  0.44070983F,  0.562617F,    0.72295684F,   1.F};
constexpr std::array<float, 16> fp4_levels{0.F,  0.0625F / 12,  8.F / 12,  1.F,  4.F / 12,  0.5F,  2.F / 12,  0.25F,
                                           -0.F, -0.0625F / 12, -8.F / 12, -1.F, -4.F / 12, -0.5F, -2.F / 12, -0.25F};

// An element is above its level's lower border: halfway to the next level, in fp32.
constexpr auto nf4_borders = [] {
  std::array<float, 15> borders{};
  for (size_t i = 0; i < borders.size(); ++i) borders[i] = (nf4_levels[i] + nf4_levels[i + 1]) / 2;
  return borders;
}();
// Borders between magnitudes of fp4, which bitsandbytes writes as decimal numbers.
constexpr std::array<float, 7> fp4_borders{0.00260417F, 0.0859375F, 0.20833333F, 0.29166667F,
                                           0.4166667F,  0.583333F,  0.8333333F};

// Integers as wide as the elements: the loops over both vectorise.
int32_t nf4_code(float x) {
  int32_t code = 0;
  for (const float border : nf4_borders) code += x > border ? 1 : 0;
  return code;
}

int32_t fp4_code(float x) {
  int32_t rank = 0;
  for (const float border : fp4_borders) rank += std::fabs(x) > border ? 1 : 0;
  // Magnitudes in ascending order have codes 0, 1, 6, 7, 4, 5, 2, 3.
  return (rank ^ ((rank & 2) << 1)) | (x < 0.F ? 8 : 0);
}

template <auto code_of>
void quantize(const float* values, int64_t count, float inverse, uint8_t* codes) {
  constexpr int64_t piece = 32;
  std::array<float, piece> scaled{};
  std::array<int32_t, piece> each{};
  for (int64_t begin = 0; begin < count; begin += piece) {
    const int64_t size = std::min(piece, count - begin);
    if (size < piece) scaled.fill(0.F);
    for (int64_t i = 0; i < size; ++i) scaled[static_cast<size_t>(i)] = values[begin + i] * inverse;
    for (size_t i = 0; i < scaled.size(); ++i) each[i] = code_of(scaled[i]);
    for (int64_t i = 0; i < size; i += 2) {
      const auto at = static_cast<size_t>(i);
      codes[(begin + i) / 2] = static_cast<uint8_t>(each[at] << 4 | each[at + 1]);
    }
  }
}

// NaN counts as the largest magnitude.
float largest_magnitude(const float* values, int64_t count) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) largest = std::max(largest, std::bit_cast<uint32_t>(values[i]) & 0x7FFFFFFFU);
  return std::bit_cast<float>(largest);
}

struct Pair {
  float high, low;
};
constexpr std::array<Pair, 256> pairs_of(const std::array<float, 16>& levels) {
  std::array<Pair, 256> pairs{};
  for (size_t code = 0; code < pairs.size(); ++code) pairs[code] = {levels[code >> 4], levels[code & 15]};
  return pairs;
}
constexpr std::array<Pair, 256> nf4_pairs = pairs_of(nf4_levels);
constexpr std::array<Pair, 256> fp4_pairs = pairs_of(fp4_levels);

void check_four_bits(QuantizedType type) {
  LLMTRAIN_CHECK(type != QuantizedType::int8, "codes of 4 bits are nf4 or fp4");
}

}  // namespace

std::span<const float, 16> levels_of(QuantizedType type) {
  check_four_bits(type);
  return type == QuantizedType::nf4 ? nf4_levels : fp4_levels;
}

void quantize_blocks(QuantizedType type, int64_t block, const float* values, int64_t count, uint8_t* codes,
                     float* absmax) {
  check_four_bits(type);
  for (int64_t begin = 0; begin < count; begin += block, ++absmax) {
    const int64_t size = std::min(block, count - begin);
    *absmax = largest_magnitude(values + begin, size);
    const float inverse = 1.F / (*absmax < 1e-38F ? 1e-38F : *absmax);
    if (type == QuantizedType::nf4) quantize<nf4_code>(values + begin, size, inverse, codes + begin / 2);
    if (type == QuantizedType::fp4) quantize<fp4_code>(values + begin, size, inverse, codes + begin / 2);
  }
}

void dequantize_blocks(QuantizedType type, int64_t block, const uint8_t* codes, const float* absmax, int64_t count,
                       float* values) {
  check_four_bits(type);
  const Pair* const pairs = type == QuantizedType::nf4 ? nf4_pairs.data() : fp4_pairs.data();
  for (int64_t begin = 0; begin < count; begin += block, ++absmax) {
    const float scale = *absmax;
    const int64_t size = std::min(block, count - begin);
    const uint8_t* const in = codes + begin / 2;
    float* const out = values + begin;
    for (int64_t i = 0; i < size / 2; ++i) {
      out[2 * i] = pairs[in[i]].high * scale;
      out[2 * i + 1] = pairs[in[i]].low * scale;
    }
    if (size % 2 != 0) out[size - 1] = pairs[in[size / 2]].high * scale;
  }
}

NestedScales quantize_scales(std::span<const float> absmax) {
  NestedScales nested;
  double sum = 0;
  for (const float scale : absmax) sum += static_cast<double>(scale);
  nested.offset = absmax.empty() ? 0.F : static_cast<float>(sum / static_cast<double>(absmax.size()));
  nested.codes.resize(absmax.size());
  std::array<float, NestedScales::block> rest{};
  for (size_t begin = 0; begin < absmax.size(); begin += rest.size()) {
    const size_t size = std::min(rest.size(), absmax.size() - begin);
    for (size_t i = 0; i < size; ++i) rest[i] = absmax[begin + i] - nested.offset;
    nested.absmax.push_back(largest_magnitude(rest.data(), static_cast<int64_t>(size)));
    const float inverse = 1.F / (nested.absmax.back() < 1e-38F ? 1e-38F : nested.absmax.back());
    for (size_t i = 0; i < size; ++i)
      nested.codes[begin + i] = nearest_code(signed_dynamic_map.data(), rest[i] * inverse);
  }
  return nested;
}

float nested_scale(const uint8_t* codes, const float* absmax, float offset, int64_t index) {
  return rounded_product(signed_dynamic_map[codes[index]], absmax[index / NestedScales::block]) + offset;
}

void quantize_rows(const float* values, int64_t rows, int64_t columns, int8_t* codes, float* scales) {
  constexpr float whole = 0x1.8p23F;  // floats of this size are integers: a sum with it is rounded to one, ties to even
  for (int64_t row = 0; row < rows; ++row, values += columns, codes += columns) {
    // The largest magnitude of the rounded elements is that of the elements, rounded.
    scales[row] = static_cast<float>(f16(largest_magnitude(values, columns)));
    const float factor = int8_factor(scales[row]);
    for (int64_t i = 0; i < columns; ++i) {
      const float code = rounded_product(static_cast<float>(f16(values[i])), factor);
      const float bounded = code > -127.5F && code < 127.5F ? code : 0.F;
      codes[i] = static_cast<int8_t>(std::bit_cast<int32_t>(bounded + whole) - std::bit_cast<int32_t>(whole));
    }
  }
}

void dequantize_rows(const int8_t* codes, const float* scales, int64_t rows, int64_t columns, float* values) {
  for (int64_t row = 0; row < rows; ++row, codes += columns, values += columns)
    for (int64_t i = 0; i < columns; ++i)
      values[i] = rounded_product(rounded_product(static_cast<float>(codes[i]), scales[row]), int8_step);
}

}  // namespace llmtrain
