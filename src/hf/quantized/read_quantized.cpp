#include "hf/quantized/read_quantized.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "core/error.hpp"
#include "core/files/json_reader.hpp"
#include "core/message.hpp"
#include "hf/weights/read_slice.hpp"

namespace llmtrain {
namespace {

constexpr int64_t quantized_piece = int64_t{1} << 17;  ///< elements: 512 KiB of fp32

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

/// Scales of blocks [first, last) of a quantised tensor. Returns the bytes read.
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

QuantizedReader::QuantizedReader(const StoredSlice& slice, const Quantization& wanted)
    : slice_(slice),
      quantization_(slice.tensor->quantized ? slice.tensor->quantized->quantization : wanted),
      elements_(slice.rows * slice.columns),
      block_(quantization_.type == QuantizedType::int8 ? slice.columns : quantization_.block_size) {
  if (quantization_.type == QuantizedType::int8) {
    quantization_.double_quantization = false;
    quantization_.outlier_threshold = wanted.outlier_threshold;
  }
}

/// Calls use(first block, blocks, codes, scales) for blocks [first, last), quantised from the values of the files.
template <class Use>
void QuantizedReader::quantize(int64_t first, int64_t last, const Use& use) const {
  const int64_t step = std::max<int64_t>(1, quantized_piece / block_);
  std::vector<float> values, scales;
  std::vector<uint8_t> codes;
  for (int64_t at = first; at < last; at += step) {
    const int64_t stop = std::min(at + step, last), begin = at * block_, end = std::min(stop * block_, elements_);
    values.resize(static_cast<size_t>(end - begin));
    codes.resize(values.size());
    scales.resize(static_cast<size_t>(stop - at));
    read_slice(slice_, begin, end, values.data());
    if (quantization_.type == QuantizedType::int8) {
      quantize_rows(values.data(), stop - at, block_, reinterpret_cast<int8_t*>(codes.data()), scales.data());
    } else {
      quantize_blocks(quantization_.type, block_, values.data(), end - begin, codes.data(), scales.data());
    }
    if (!std::ranges::all_of(scales, [](float x) { return std::isfinite(x); })) {
      throw UserError(
          ExitCode::bad_content,
          fmt::format("{}: {} has a value that is not finite{}, so it cannot be quantised", slice_.file->path(),
                      printable(slice_.tensor->name), quantization_.type == QuantizedType::int8 ? " in fp16" : ""));
    }
    use(at, stop - at, codes.data(), scales.data());
  }
}

void QuantizedReader::read_scales(int64_t first, int64_t last, float* scales) const {
  if (first >= last) return;
  if (is_stored()) {
    read_stored_scales(slice_, first, last, scales);
    return;
  }
  quantize(first, last, [&](int64_t at, int64_t count, const uint8_t* /*codes*/, const float* found) {
    std::copy_n(found, count, scales + (at - first));
  });
}

void QuantizedReader::read_blocks(int64_t first, int64_t last, uint8_t* codes, float* scales) const {
  if (first >= last) return;
  const bool bytes = quantization_.type == QuantizedType::int8;
  const auto size = [&](int64_t elements) { return bytes ? elements : (elements + 1) / 2; };
  const int64_t begin = first * block_, end = std::min(last * block_, elements_);
  if (is_stored()) {
    slice_.file->read(slice_.tensor->begin + size(begin), size(end - begin), codes);
    if (scales != nullptr) read_stored_scales(slice_, first, last, scales);
    return;
  }
  quantize(first, last, [&](int64_t at, int64_t count, const uint8_t* from, const float* found) {
    const int64_t elements = std::min((at + count) * block_, elements_) - at * block_;
    std::copy_n(from, size(elements), codes + size((at - first) * block_));
    if (scales != nullptr) std::copy_n(found, count, scales + (at - first));
  });
}

NestedScales QuantizedReader::read_nested() const {
  LLMTRAIN_CHECK(quantization_.double_quantization, "only doubly quantised matrices have nested scales");
  if (!is_stored()) {
    std::vector<float> scales(static_cast<size_t>(blocks()));
    read_scales(0, blocks(), scales.data());
    return quantize_scales(scales);
  }
  const QuantizedPlanes& planes = planes_of(slice_);
  if (planes.nested_block != NestedScales::block) {
    throw UserError(ExitCode::bad_content,
                    fmt::format("{}: {}: nested_blocksize is {}; only {} is supported", slice_.file->path(),
                                printable(slice_.tensor->name), planes.nested_block, NestedScales::block));
  }
  NestedScales nested;
  nested.offset = planes.offset;
  nested.codes.resize(static_cast<size_t>(blocks()));
  nested.absmax.resize(static_cast<size_t>(blocks_of(blocks(), NestedScales::block)));
  slice_.scales->read(planes.scales.begin, blocks(), nested.codes.data());
  slice_.nested->read(planes.nested.begin, 4 * std::ssize(nested.absmax), nested.absmax.data());
  return nested;
}

}  // namespace llmtrain
