#include "params/slice_quantizer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "core/error.hpp"

namespace llmtrain {

namespace {

/// Never negative, so that the maximum over ranks is the value of the one that has it, whatever its sign.
int64_t bits_of(float value) { return std::bit_cast<uint32_t>(value); }
float value_of(int64_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits)); }
int64_t up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

}  // namespace

SliceQuantizer::SliceQuantizer(const UnitState& unit, int param, int slice)
    : unit_(unit),
      param_(param),
      slice_(slice),
      format_(unit.spec.quantization.value()),
      offset_(unit.layout.offset(param, slice)),
      rows_(unit.param(param).slices[static_cast<size_t>(slice)].rows),
      columns_(unit.param(param).columns) {
  if (format_.type == QuantizedType::int8) {
    scales_.resize(static_cast<size_t>(rows_));
  } else if (format_.double_quantization) {
    scales_.resize(static_cast<size_t>(blocks_of(format_, rows_ * columns_)));
  }
}

/// Calls visit(begin, end) for the elements of the range that this rank stores, segment by segment.
template <class Visit>
void SliceQuantizer::each_owned(const ElementRange& range, const Visit& visit) const {
  for (const UnitSegment& own : unit_.segments) {
    const int64_t begin = std::max(own.begin - offset_, range.begin);
    const int64_t end = std::min(own.end - offset_, range.end);
    if (begin < end) visit(begin, end);
  }
}

std::vector<ElementRange> SliceQuantizer::owned(const ElementRange& range) const {
  std::vector<ElementRange> parts;
  each_owned(range, [&](int64_t begin, int64_t end) { parts.push_back({begin, end}); });
  return parts;
}

std::vector<ElementRange> SliceQuantizer::ranges(int64_t max_elements) const {
  const bool by_rows = format_.type == QuantizedType::int8;
  const int64_t step =
      by_rows ? std::max<int64_t>(max_elements / columns_, 1) * columns_ : up(max_elements, chunk_elements);
  std::vector<ElementRange> result;
  each_owned(whole(), [&](int64_t begin, int64_t end) {
    if (by_rows) {
      begin = std::max(begin / columns_ * columns_, result.empty() ? int64_t{0} : result.back().end);
      end = up(end, columns_);
    }
    for (; begin < end; begin += step) result.push_back({begin, std::min(begin + step, end)});
  });
  return result;
}

void SliceQuantizer::put(const ElementRange& range, const float* values, Stream& stream) {
  const int64_t count = range.end - range.begin;
  std::vector<uint8_t> codes(static_cast<size_t>(count));
  if (format_.type == QuantizedType::int8) {
    std::vector<float> scales(static_cast<size_t>(count / columns_));
    quantize_rows(values, count / columns_, columns_, reinterpret_cast<int8_t*>(codes.data()), scales.data());
    check_finite(scales);
    return put_rows(range, codes.data(), scales.data(), stream);
  }
  std::vector<float> scales(static_cast<size_t>(blocks_of(format_, count)));
  quantize_blocks(format_.type, format_.block_size, values, count, codes.data(), scales.data());
  check_finite(scales);
  put_blocks(range, codes.data(), scales.data(), stream);
}

/// The scale of a block or row is not finite if one of its values is not. int8 rounds values to fp16 first.
void SliceQuantizer::check_finite(const std::vector<float>& scales) const {
  if (std::ranges::all_of(scales, [](float x) { return std::isfinite(x); })) return;
  const ParamSpec& param = unit_.param(param_);
  throw UserError(ExitCode::bad_content, fmt::format("{} has a value that is not finite{}, so it cannot be quantised",
                                                     param.slices[static_cast<size_t>(slice_)].name,
                                                     format_.type == QuantizedType::int8 ? " in fp16" : ""));
}

void SliceQuantizer::put_codes(const ElementRange& range, const uint8_t* codes, const float* scales, Stream& stream) {
  format_.type == QuantizedType::int8 ? put_rows(range, codes, scales, stream)
                                      : put_blocks(range, codes, scales, stream);
}

void SliceQuantizer::put_blocks(const ElementRange& range, const uint8_t* codes, const float* scales, Stream& stream) {
  const int64_t count = range.end - range.begin, chunks = up(count, chunk_elements) / chunk_elements;
  const int64_t blocks = blocks_of(format_, count), first_block = range.begin / format_.block_size;
  std::vector<uint8_t> records(static_cast<size_t>(chunks * chunk_bytes(format_)));
  for (int64_t c = 0; c < chunks; ++c) {
    uint8_t* record = records.data() + c * chunk_bytes(format_);
    const int64_t first = c * code_bytes(format_), first_scale = c * scales_of_chunk(format_);
    std::memcpy(record, codes + first, static_cast<size_t>(std::min(code_bytes(format_), (count + 1) / 2 - first)));
    if (format_.double_quantization) continue;
    std::memcpy(record + code_bytes(format_), scales + first_scale,
                static_cast<size_t>(std::min(scales_of_chunk(format_), blocks - first_scale)) * sizeof(float));
  }
  for (int64_t b = 0; b < blocks && format_.double_quantization; ++b) {
    scales_[static_cast<size_t>(first_block + b)] = bits_of(scales[b]);
  }
  write_tensor(unit_.records(offset_ + range.begin, chunks * chunk_elements), records.data(), stream);
}

/// The codes of a row may belong to several ranks, each of which has all of it.
void SliceQuantizer::put_rows(const ElementRange& range, const uint8_t* codes, const float* scales, Stream& stream) {
  const int64_t first_row = range.begin / columns_, rows = (range.end - range.begin) / columns_;
  // Two ranges may have a chunk in common: each reads it and changes its own part.
  const std::lock_guard lock(mutex_);
  for (int64_t r = 0; r < rows; ++r) scales_[static_cast<size_t>(first_row + r)] = bits_of(scales[r]);
  each_owned(range, [&](int64_t begin, int64_t end) {
    const int64_t first = begin / chunk_elements * chunk_elements, count = up(end, chunk_elements) - first;
    std::vector<uint8_t> records(static_cast<size_t>(count));
    read_tensor(records.data(), unit_.records(offset_ + first, count), stream);
    std::memcpy(records.data() + (begin - first), codes + (begin - range.begin), static_cast<size_t>(end - begin));
    write_tensor(unit_.records(offset_ + first, count), records.data(), stream);
  });
}

void SliceQuantizer::store_table(const std::vector<float>& values, Stream& stream) const {
  const Tensor table = unit_.table(param_, slice_);
  LLMTRAIN_CHECK(std::ssize(values) == table.numel(), "a table of scales of another size");
  write_tensor(table, values.data(), stream);
}

/// Stores the table, and the codes of the scales that this rank owns.
void SliceQuantizer::finish(const NestedScales& nested, Stream& stream) {
  std::vector<float> table{nested.offset};
  table.insert(table.end(), nested.absmax.begin(), nested.absmax.end());
  store_table(table, stream);
  constexpr int64_t step = chunk_elements << 10;
  each_owned(whole(), [&](int64_t begin, int64_t end) {
    for (; begin < end; begin += step) {
      const int64_t count = up(std::min(step, end - begin), chunk_elements);
      std::vector<uint8_t> records(static_cast<size_t>(count / chunk_elements * chunk_bytes(format_)));
      read_tensor(records.data(), unit_.records(offset_ + begin, count), stream);
      for (int64_t c = 0; c < count / chunk_elements; ++c) {
        for (int64_t i = 0; i < scales_of_chunk(format_); ++i) {
          const auto block = static_cast<size_t>((begin / chunk_elements + c) * scales_of_chunk(format_) + i);
          if (block >= nested.codes.size()) break;
          records[static_cast<size_t>(c * chunk_bytes(format_) + code_bytes(format_) + i)] = nested.codes[block];
        }
      }
      write_tensor(unit_.records(offset_ + begin, count), records.data(), stream);
    }
  });
}

void SliceQuantizer::finish(Communicator& communicator, Stream& stream) {
  if (scales_.empty()) return;
  if (communicator.size() > 1) communicator.maximum(scales_);
  std::vector<float> scales;
  scales.reserve(scales_.size());
  for (const int64_t bits : scales_) scales.push_back(value_of(bits));
  if (format_.type != QuantizedType::int8) return finish(quantize_scales(scales), stream);
  store_table(scales, stream);
}

}  // namespace llmtrain
