#pragma once
// Dropout factors of consecutive elements, from eight Philox evaluations of four elements each at a time; the same bits
// as Dropout::scale.

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#include "kernels/dropout.hpp"
#include "kernels/host/philox8.hpp"

namespace llmtrain::host {

class DropoutRow {
 public:
  explicit DropoutRow(const Dropout& dropout)
      : key_(dropout.key),
        threshold_(dropout.threshold()),
        kept_(std::bit_cast<uint32_t>(1.0f / (1.0f - dropout.probability))) {}

  static constexpr int64_t longest = 256;

  /// Factors of elements first .. first + count - 1 of `sequence`, count <= longest; valid until the next call.
  const float* factors(uint64_t sequence, uint64_t first, int64_t count) {
    const auto skipped = static_cast<int64_t>(first & 3);
    for (int64_t i = 0; i < skipped + count; i += 32) {
      const uint64_t group = (first + static_cast<uint64_t>(i)) >> 2;
      Philox8 random = philox8(key_, consecutive_counters(sequence, group));
      for (Words8& word : random.v) word = ~std::bit_cast<Words8>(word < threshold_) & kept_;  // all bits or none
      store(buffer_ + i, random);
    }
    return buffer_ + skipped;
  }

 private:
  /// Word w of evaluation l is element 4 l + w.
  static void store(float* out, const Philox8& r) {
    const Words8 ab_low = __builtin_shufflevector(r.v[0], r.v[1], 0, 8, 1, 9, 2, 10, 3, 11);
    const Words8 ab_high = __builtin_shufflevector(r.v[0], r.v[1], 4, 12, 5, 13, 6, 14, 7, 15);
    const Words8 cd_low = __builtin_shufflevector(r.v[2], r.v[3], 0, 8, 1, 9, 2, 10, 3, 11);
    const Words8 cd_high = __builtin_shufflevector(r.v[2], r.v[3], 4, 12, 5, 13, 6, 14, 7, 15);
    const Words8 rows[4] = {__builtin_shufflevector(ab_low, cd_low, 0, 1, 8, 9, 2, 3, 10, 11),
                            __builtin_shufflevector(ab_low, cd_low, 4, 5, 12, 13, 6, 7, 14, 15),
                            __builtin_shufflevector(ab_high, cd_high, 0, 1, 8, 9, 2, 3, 10, 11),
                            __builtin_shufflevector(ab_high, cd_high, 4, 5, 12, 13, 6, 7, 14, 15)};
    std::memcpy(out, rows, sizeof rows);
  }

  uint64_t key_;
  uint32_t threshold_;
  uint32_t kept_;  ///< bits of the factor for kept elements
  alignas(32) float buffer_[longest + 32];
};

/// Calls body(first, count, scale) over channels [begin, end) of a row in runs of at most DropoutRow::longest; `scale`
/// is null without dropout. The row is sequence_ids[r], sequence_offsets[r] of the batch; `width` is C.
template <class Body>
void with_dropout(const Dropout& dropout, const Batch& batch, int64_t row, int64_t width, int64_t begin, int64_t end,
                  const Body& body) {
  if (!dropout.active()) {
    body(begin, end - begin, static_cast<const float*>(nullptr));
    return;
  }
  DropoutRow generator(dropout);
  const auto sequence = static_cast<uint64_t>(batch.sequence_ids.as<int64_t>()[row]);
  const auto base = static_cast<uint64_t>(batch.sequence_offsets.as<int32_t>()[row]) * static_cast<uint64_t>(width);
  for (int64_t first = begin; first < end; first += DropoutRow::longest) {
    const int64_t count = std::min(DropoutRow::longest, end - first);
    body(first, count, generator.factors(sequence, base + static_cast<uint64_t>(first), count));
  }
}

}  // namespace llmtrain::host
