// Dequantises matrices of 4 bits in the layouts of GPTQ (Frantar et al. 2022, arXiv:2210.17323) and AutoAWQ (Lin et al.
// 2023, arXiv:2306.00978), as their own modules do: scale x (code - zero point), rounded to the type of the scales.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

#include "core/dtype.hpp"
#include "core/error.hpp"
#include "core/files/json_reader.hpp"
#include "hf/convert.hpp"
#include "hf/weights/stored_slice.hpp"
#include "parallel/message.hpp"

namespace llmtrain {
namespace {

constexpr int64_t codes_of_word = 8;
constexpr int64_t tile_codes = int64_t{1} << 18;
/// Places in a word of the codes of 8 consecutive outputs.
constexpr std::array<int, 8> awq_places = {0, 4, 1, 5, 2, 6, 3, 7}, gptq_places = {0, 1, 2, 3, 4, 5, 6, 7};

uint8_t code_at(const std::vector<uint32_t>& words, int64_t output, const std::array<int, 8>& places) {
  const auto at = static_cast<size_t>(output);
  return static_cast<uint8_t>(words[at / 8] >> (4 * places[at % 8]) & 15U);
}

/// Rows [first, first + count) of a matrix [outputs, inputs] in files.
class PackedRows {
 public:
  PackedRows(const StoredSlice& slice, int64_t first, int64_t count)
      : slice_(slice),
        planes_(*slice.tensor->packed),
        outputs_(slice.tensor->shape.front()),
        first_(first),
        count_(count),
        first_word_(first / codes_of_word),
        words_((first + count - 1) / codes_of_word + 1 - first_word_) {
    read_scales();
  }

  int64_t bytes() const { return bytes_; }

  /// Reads codes of inputs [begin, end): [inputs, rows].
  void read_codes(int64_t begin, int64_t end, std::vector<uint8_t>& codes) {
    codes.resize(static_cast<size_t>((end - begin) * count_));
    if (planes_.awq) {
      for (int64_t input = begin; input < end; ++input) {
        read_words(*slice_.file, slice_.tensor->begin, input, outputs_ / codes_of_word, first_word_, words_);
        uint8_t* const to = &codes[static_cast<size_t>((input - begin) * count_)];
        for (int64_t r = 0; r < count_; ++r) to[r] = code_at(buffer_, first_ + r - first_word_ * 8, awq_places);
      }
      return;
    }
    for (int64_t word = begin / 8; word <= (end - 1) / 8; ++word) {
      read_words(*slice_.file, slice_.tensor->begin, word, outputs_, first_, count_);
      for (int64_t input = std::max(begin, 8 * word); input < std::min(end, 8 * word + 8); ++input) {
        uint8_t* const to = &codes[static_cast<size_t>((input - begin) * count_)];
        const int shift = static_cast<int>(4 * (input % 8));
        for (int64_t r = 0; r < count_; ++r) {
          to[r] = static_cast<uint8_t>(buffer_[static_cast<size_t>(r)] >> shift & 15U);
        }
      }
    }
  }

  float value(int64_t row, int32_t group, uint8_t code) const {
    const size_t at = static_cast<size_t>(group) * static_cast<size_t>(count_) + static_cast<size_t>(row);
    return scales_[at] * static_cast<float>(static_cast<int>(code) - static_cast<int>(zeros_[at]));
  }

 private:
  /// Reads words [first, first + count) of a row of `columns` words.
  void read_words(const FileHandle& file, int64_t begin, int64_t row, int64_t columns, int64_t first, int64_t count) {
    buffer_.resize(static_cast<size_t>(count));
    file.read(begin + (row * columns + first) * 4, count * 4, buffer_.data());
    bytes_ += count * 4;
  }

  void read_scales() {
    const StoredType type = slice_.tensor->type;
    const int64_t width = bits_of(type) / 8;
    const auto& places = planes_.awq ? awq_places : gptq_places;
    std::vector<char> stored(static_cast<size_t>(count_ * width));
    scales_.resize(static_cast<size_t>(planes_.groups * count_));
    zeros_.resize(scales_.size());
    for (int64_t group = 0; group < planes_.groups; ++group) {
      const auto at = static_cast<size_t>(group * count_);
      slice_.scales->read(planes_.scales.begin + (group * outputs_ + first_) * width, count_ * width, stored.data());
      bytes_ += count_ * width;
      to_float(type, stored.data(), count_, &scales_[at]);
      read_words(*slice_.nested, planes_.zeros.begin, group, outputs_ / codes_of_word, first_word_, words_);
      for (int64_t r = 0; r < count_; ++r) {
        const uint8_t zero = code_at(buffer_, first_ + r - first_word_ * 8, places);
        zeros_[at + static_cast<size_t>(r)] = planes_.zeros_less_1 ? (zero + 1) & 15 : zero;
      }
    }
  }

  const StoredSlice& slice_;
  const PackedPlanes& planes_;
  int64_t outputs_, first_, count_, first_word_, words_;
  int64_t bytes_ = 0;
  std::vector<uint32_t> buffer_;
  std::vector<float> scales_;   ///< [groups, rows]
  std::vector<uint8_t> zeros_;  ///< the same
};

/// Rounds values to what a tensor of this type can hold.
void round_values(StoredType type, float* values, int64_t count) {
  if (type == StoredType::F16) {
    for (int64_t i = 0; i < count; ++i) values[i] = static_cast<float>(f16(values[i]));
  } else if (type == StoredType::BF16) {
    for (int64_t i = 0; i < count; ++i) values[i] = static_cast<float>(bf16(values[i]));
  }
}

}  // namespace

std::vector<int32_t> read_groups(const StoredSlice& slice, int64_t first, int64_t last) {
  const PackedPlanes& planes = *slice.tensor->packed;
  std::vector<int32_t> groups(static_cast<size_t>(last - first));
  if (!planes.group_of) {
    for (int64_t i = first; i < last; ++i) {
      groups[static_cast<size_t>(i - first)] = static_cast<int32_t>(i / planes.group_size);
    }
    return groups;
  }
  slice.group_of->read(planes.group_of->begin + 4 * first, 4 * (last - first), groups.data());
  const auto wrong = std::ranges::find_if(groups, [&](int32_t group) { return group < 0 || group >= planes.groups; });
  if (wrong != groups.end()) {
    throw UserError(
        ExitCode::bad_content,
        fmt::format("{}: g_idx of {} has the group {} for input {}; the groups are 0 to {}", slice.group_of->path(),
                    printable(slice.tensor->name), *wrong, first + (wrong - groups.begin()), planes.groups - 1));
  }
  return groups;
}

int64_t read_packed(const StoredSlice& s, int64_t begin, int64_t end, const ExamineValues& put) {
  if (begin >= end) return 0;
  const TensorBlock place = s.place();
  const int64_t first = begin / s.columns, rows = (end - 1) / s.columns + 1 - first;
  const int64_t left = place.first_column, right = left + s.columns;
  const std::vector<int32_t> groups = read_groups(s, left, right);
  PackedRows matrix(s, place.first_row + first, rows);
  const int64_t tile = std::max<int64_t>(tile_codes / rows / codes_of_word, 1) * codes_of_word;
  std::vector<uint8_t> codes;
  std::vector<float> run(static_cast<size_t>(std::min(tile, s.columns)));
  for (int64_t input = left; input < right;) {
    const int64_t stop = std::min(right, (input / tile + 1) * tile), count = stop - input;
    matrix.read_codes(input, stop, codes);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = 0; i < count; ++i) {
        run[static_cast<size_t>(i)] =
            matrix.value(r, groups[static_cast<size_t>(input - left + i)], codes[static_cast<size_t>(i * rows + r)]);
      }
      const int64_t at = (first + r) * s.columns + input - left - begin;  // of the run, counted from `begin`
      const int64_t from = std::max<int64_t>(0, -at), to = std::min(count, end - begin - at);
      if (from >= to) continue;
      round_values(s.tensor->type, run.data() + from, to - from);
      put(at + from, run.data() + from, to - from);
    }
    input = stop;
  }
  return matrix.bytes() + (s.group_of == nullptr ? 0 : 4 * s.columns);
}

}  // namespace llmtrain
