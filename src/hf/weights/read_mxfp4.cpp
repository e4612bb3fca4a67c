#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "hf/weights/stored_slice.hpp"

namespace llmtrain {
namespace {

constexpr int64_t mxfp4_elements = 32, mxfp4_bytes = 16;
constexpr int64_t mxfp4_blocks_at_once = 4096;
constexpr int mxfp4_bias = 127;
constexpr uint8_t mxfp4_nan = 255;

/// Values of the codes: a sign, two bits of exponent, one of mantissa (E2M1).
constexpr std::array<float, 16> mxfp4_values = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};

/// Writes the values of a block; the first of two neighbours is the lower half of a byte.
void dequantize_mxfp4(const uint8_t* codes, uint8_t scale, float* out) {
  const float unit = scale == mxfp4_nan ? std::nanf("") : std::ldexp(1.0f, scale - mxfp4_bias);
  for (int64_t i = 0; i < mxfp4_bytes; ++i) {
    out[2 * i] = unit * mxfp4_values[codes[i] & 15];
    out[2 * i + 1] = unit * mxfp4_values[codes[i] >> 4];
  }
}

}  // namespace

int64_t read_mxfp4(const StoredSlice& slice, int64_t begin, int64_t end, float* out) {
  const WeightIndex::BlockScales& scales = *slice.tensor->mxfp4;
  std::vector<uint8_t> codes, exponents;
  std::array<float, mxfp4_elements> values{};
  int64_t bytes = 0;
  while (begin < end) {  // a run of blocks of one row
    const int64_t row = begin / slice.columns, last = std::min((row + 1) * slice.columns, end);
    const int64_t first_block = (begin - row * slice.columns) / mxfp4_elements;
    const int64_t end_block = (last - row * slice.columns + mxfp4_elements - 1) / mxfp4_elements;
    const int64_t count = std::min(end_block - first_block, mxfp4_blocks_at_once);
    const int64_t place = row * scales.row_stride + first_block;
    codes.resize(static_cast<size_t>(count * mxfp4_bytes));
    exponents.resize(static_cast<size_t>(count));
    slice.file->read(slice.tensor->begin + place * mxfp4_bytes, count * mxfp4_bytes, codes.data());
    slice.scales->read(scales.begin + place, count, exponents.data());
    bytes += count * (mxfp4_bytes + 1);
    for (int64_t b = 0; b < count; ++b) {
      dequantize_mxfp4(codes.data() + b * mxfp4_bytes, exponents[static_cast<size_t>(b)], values.data());
      const int64_t at = row * slice.columns + (first_block + b) * mxfp4_elements;
      const int64_t from = std::max(begin, at), to = std::min(last, at + mxfp4_elements);
      std::copy(values.begin() + (from - at), values.begin() + (to - at), out);
      out += to - from;
    }
    begin = std::min(last, row * slice.columns + (first_block + count) * mxfp4_elements);
  }
  return bytes;
}

}  // namespace llmtrain
