#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "core/error.hpp"
#include "core/files/json_reader.hpp"
#include "hf/weights/stored_slice.hpp"
#include "kernels/quantize.hpp"
#include "parallel/message.hpp"

namespace llmtrain {
namespace {

const QuantizedPlanes& planes_of(const StoredSlice& s) { return *s.tensor->quantized; }

/// Refuses a file whose scales no quantisation gives. Sums of nested scales may be slightly below 0.
void check_scales(const StoredSlice& s, std::span<const float> scales) {
  const bool nested = planes_of(s).quantization.double_quantization;
  const auto wrong = std::ranges::find_if(scales, [&](float x) { return !std::isfinite(x) || (x < 0 && !nested); });
  if (wrong == scales.end()) return;
  throw UserError(ExitCode::bad_content,
                  fmt::format("{}: a scale of {} is {}: it must be finite and not negative; fetch the model again",
                              s.scales->path(), printable(s.tensor->name), *wrong));
}

}  // namespace

int64_t read_stored_scales(const StoredSlice& s, int64_t first, int64_t last, float* scales) {
  const QuantizedPlanes& planes = planes_of(s);
  const int64_t count = last - first;
  if (!planes.quantization.double_quantization) {
    s.scales->read(planes.scales.begin + 4 * first, 4 * count, scales);
    check_scales(s, {scales, static_cast<size_t>(count)});
    return 4 * count;
  }
  const int64_t group = planes.nested_block, first_group = first / group, groups = (last - 1) / group + 1 - first_group;
  std::vector<uint8_t> codes(static_cast<size_t>(count));
  std::vector<float> absmax(static_cast<size_t>(groups));
  s.scales->read(planes.scales.begin + first, count, codes.data());
  s.nested->read(planes.nested.begin + 4 * first_group, 4 * groups, absmax.data());
  for (int64_t i = 0; i < count; ++i) {
    const auto at = static_cast<size_t>((first + i) / group - first_group);
    scales[i] = nested_scale(codes.data() + i, &absmax[at], planes.offset, 0);
  }
  check_scales(s, {scales, static_cast<size_t>(count)});
  return count + 4 * groups;
}

namespace {

int64_t read_dequantized_rows(const StoredSlice& s, int64_t begin, int64_t end, float* out) {
  const int64_t columns = s.columns, first = begin / columns, last = (end - 1) / columns + 1;
  std::vector<int8_t> codes(static_cast<size_t>(end - begin));
  std::vector<float> scales(static_cast<size_t>(last - first));
  s.file->read(s.tensor->begin + begin, end - begin, codes.data());
  s.scales->read(planes_of(s).scales.begin + 4 * first, 4 * (last - first), scales.data());
  check_scales(s, scales);
  for (int64_t at = begin; at < end;) {
    const int64_t stop = std::min(end, (at / columns + 1) * columns);
    dequantize_rows(codes.data() + (at - begin), &scales[static_cast<size_t>(at / columns - first)], 1, stop - at,
                    out + (at - begin));
    at = stop;
  }
  return end - begin + 4 * (last - first);
}

int64_t read_dequantized_blocks(const StoredSlice& s, int64_t begin, int64_t end, float* out) {
  const Quantization& q = planes_of(s).quantization;
  const int64_t block = q.block_size, elements = s.rows * s.columns;
  const int64_t first = begin / block, last = (end - 1) / block + 1;
  const int64_t low = first * block, high = std::min(last * block, elements), bytes = (high + 1) / 2 - low / 2;
  std::vector<uint8_t> codes(static_cast<size_t>(bytes));
  std::vector<float> scales(static_cast<size_t>(last - first));
  s.file->read(s.tensor->begin + low / 2, bytes, codes.data());
  const int64_t read = bytes + read_stored_scales(s, first, last, scales.data());
  if (low == begin && high == end) {
    dequantize_blocks(q.type, block, codes.data(), scales.data(), high - low, out);
    return read;
  }
  std::vector<float> values(static_cast<size_t>(high - low));
  dequantize_blocks(q.type, block, codes.data(), scales.data(), high - low, values.data());
  std::copy_n(values.data() + (begin - low), end - begin, out);
  return read;
}

}  // namespace

int64_t read_dequantized(const StoredSlice& s, int64_t begin, int64_t end, float* out) {
  const bool rows = planes_of(s).quantization.type == QuantizedType::int8;
  int64_t bytes = 0;
  for (int64_t at = begin; at < end;) {
    const int64_t stop = std::min(end, (at / quantized_piece + 1) * quantized_piece);
    bytes += (rows ? read_dequantized_rows : read_dequantized_blocks)(s, at, stop, out + (at - begin));
    at = stop;
  }
  return bytes;
}

}  // namespace llmtrain
