#pragma once
// Dropout factors of consecutive elements, one Philox evaluation per four of them; the same bits as Dropout::scale.

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/dropout.hpp"

namespace llmtrain::host {

class DropoutRow {
 public:
  explicit DropoutRow(const Dropout& dropout)
      : key_(dropout.key),
        // (bits + 1/2) / 2^32 < p, as integers; every step is exact in double.
        zeroed_(static_cast<uint64_t>(std::ceil(static_cast<double>(dropout.probability) * 4294967296.0 - 0.5))),
        kept_(1.0f / (1.0f - dropout.probability)) {}

  static constexpr int64_t longest = 256;

  /// scale[i] of element first + i of `sequence`, i < count <= longest.
  void fill(float* scale, uint64_t sequence, uint64_t first, int64_t count) const {
    uint32_t bits[4][longest / 4 + 1];
    const uint64_t group = first >> 2;
    const auto skipped = static_cast<int64_t>(first & 3);
    const int64_t groups = (skipped + count + 3) / 4;
    for (int64_t g = 0; g < groups; ++g) {
      const Philox4 r = philox4x32(key_, sequence, group + static_cast<uint64_t>(g));
      for (int i = 0; i < 4; ++i) bits[i][g] = r.v[i];
    }
    for (int64_t i = 0; i < count; ++i) {
      scale[i] = bits[(skipped + i) & 3][(skipped + i) >> 2] < zeroed_ ? 0.0f : kept_;
    }
  }

 private:
  uint64_t key_;
  uint64_t zeroed_;
  float kept_;
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
  const DropoutRow row_of_factors(dropout);
  const auto sequence = static_cast<uint64_t>(batch.sequence_ids.as<int64_t>()[row]);
  const auto base = static_cast<uint64_t>(batch.sequence_offsets.as<int32_t>()[row]) * static_cast<uint64_t>(width);
  float scale[DropoutRow::longest];
  for (int64_t first = begin; first < end; first += DropoutRow::longest) {
    const int64_t count = std::min(DropoutRow::longest, end - first);
    row_of_factors.fill(scale, sequence, base + static_cast<uint64_t>(first), count);
    body(first, count, static_cast<const float*>(scale));
  }
}

}  // namespace llmtrain::host
