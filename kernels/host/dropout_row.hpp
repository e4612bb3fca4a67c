#pragma once
// Dropout factors of consecutive elements, eight Philox evaluations of four elements each at a time; the same bits as
// Dropout::scale.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/dropout.hpp"
#include "kernels/host/philox8.hpp"

namespace llmtrain::host {

class DropoutRow {
 public:
  explicit DropoutRow(const Dropout& dropout)
      : key_(dropout.key),
        // (bits + 1/2) / 2^32 < p as integers; every step is exact in double, and p < 1.
        zeroed_(static_cast<uint32_t>(
            std::ceil(std::max(0.0, static_cast<double>(dropout.probability) * 4294967296.0 - 0.5)))),
        kept_(std::bit_cast<uint32_t>(1.0f / (1.0f - dropout.probability))) {}

  static constexpr int64_t longest = 256;

  /// Factors of elements first .. first + count - 1 of `sequence`, count <= longest; valid until the next call.
  const float* factors(uint64_t sequence, uint64_t first, int64_t count) {
    const auto skipped = static_cast<int64_t>(first & 3);
    const Words8 eight{0, 1, 2, 3, 4, 5, 6, 7};
    const Words8 zero{};
    for (int64_t i = 0; i < skipped + count; i += 32) {
      const uint64_t group = (first + static_cast<uint64_t>(i)) >> 2;
      const auto low = static_cast<uint32_t>(group);
      const Words8 counter_low = eight + low;
      const auto carried = counter_low < low;  // all bits, that is -1, or none
      const Words8 counter_high = zero + static_cast<uint32_t>(group >> 32) - reinterpret_cast<const Words8&>(carried);
      Philox8 random = philox8(key_, {{counter_low, counter_high, zero + static_cast<uint32_t>(sequence),
                                       zero + static_cast<uint32_t>(sequence >> 32)}});
      for (Words8& word : random.v) {
        const auto dropped = word < zeroed_;  // all bits or none
        word = ~reinterpret_cast<const Words8&>(dropped) & kept_;
      }
      store(buffer_ + i, random);
    }
    return reinterpret_cast<const float*>(buffer_) + skipped;
  }

 private:
  /// Word w of evaluation l is element 4 l + w.
  static void store(uint32_t* out, const Philox8& r) {
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
  uint32_t zeroed_;
  uint32_t kept_;
  alignas(32) uint32_t buffer_[longest + 32];
};

/// body(first, count, scale) over channels [begin, end) of a row in pieces of at most DropoutRow::longest; `scale` is
/// null without dropout. The row is sequence_ids[r], sequence_offsets[r] of the batch; `width` is C.
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
