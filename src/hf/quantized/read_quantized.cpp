#include "hf/quantized/read_quantized.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/error.hpp"
#include "core/files/json_reader.hpp"
#include "parallel/message.hpp"

namespace llmtrain {

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
  const QuantizedPlanes& planes = *slice_.tensor->quantized;
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
