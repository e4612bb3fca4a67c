#pragma once
// Dropout masks of a [keys, queries] tile of probabilities.

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels/dropout.hpp"
#include "kernels/host/attention/attention_plan.hpp"
#include "kernels/host/philox8.hpp"

namespace llmtrain::host {

/// Identity of a tile's rows: pointers to its first key and first query.
struct TileRows {
  const int64_t* query_ids;      ///< sequence_ids of the queries
  const int32_t* query_offsets;  ///< sequence_offsets of the queries
  const int32_t* key_offsets;
  int queries;
  int keys;
};

inline TileRows tile_rows(const Batch& batch, const Segment& segment, int query_block, int key_block) {
  const int64_t query = segment.begin + int64_t{query_block} * attention_block;
  const int64_t key = segment.begin + int64_t{key_block} * attention_block;
  const int32_t* offsets = batch.sequence_offsets.as<int32_t>();
  return {batch.sequence_ids.as<int64_t>() + query, offsets + query, offsets + key, segment.rows_of(query_block),
          segment.rows_of(key_block)};
}

/// keep[64, 64] = Dropout::scale of element ((first_head + head) * 2^24 + query offset) * 2^24 + key offset. Four keys
/// of consecutive offsets share one evaluation of Philox. Keys past the tile get 0.
class DropoutTile {
 public:
  DropoutTile(const Dropout& dropout, const AttentionShape& shape)
      : key_(dropout.key),
        threshold_(dropout.threshold()),
        scale_(1.0f / (1.0f - dropout.probability)),
        first_head_(static_cast<int>(shape.first_head)) {}

  void fill(float* keep, int head, const TileRows& rows) const {
    Philox8 counters[block / 8];
    start(counters, first_head_ + head, rows);
    Words8 bits[4][block / 8];
    int64_t evaluated = -1;
    for (int r = 0; r < rows.keys; ++r) {
      const uint32_t offset = static_cast<uint32_t>(rows.key_offsets[r]);
      if (evaluated != offset >> 2) {
        evaluated = offset >> 2;
        evaluate(bits, counters, offset >> 2);
      }
      for (int c = 0; c < block / 8; ++c) {
        const Float8 kept = Float8{} + scale_;
        store8(keep + r * block + 8 * c, bits[offset & 3][c] < threshold_ ? Float8{} : kept);
      }
    }
    std::fill(keep + rows.keys * block, keep + block * block, 0.0f);
  }

 private:
  static constexpr int block = attention_block;

  /// Counters of key offsets 0 to 3: (element / 4, sample). The key's offset / 4 fills the 22 low bits.
  static void start(Philox8* counters, int head, const TileRows& rows) {
    uint32_t word[4][block] = {};
    for (int c = 0; c < rows.queries; ++c) {
      const uint64_t low = ((static_cast<uint64_t>(head) << 24) + static_cast<uint32_t>(rows.query_offsets[c])) << 22;
      const auto high = static_cast<uint64_t>(rows.query_ids[c]);
      word[0][c] = static_cast<uint32_t>(low);
      word[1][c] = static_cast<uint32_t>(low >> 32);
      word[2][c] = static_cast<uint32_t>(high);
      word[3][c] = static_cast<uint32_t>(high >> 32);
    }
    for (int c = 0; c < block / 8; ++c) {
      for (int i = 0; i < 4; ++i) std::memcpy(&counters[c].v[i], word[i] + 8 * c, sizeof(Words8));
    }
  }

  void evaluate(Words8 (*bits)[block / 8], const Philox8* counters, uint32_t group) const {
    for (int c = 0; c < block / 8; ++c) {
      Philox8 counter = counters[c];
      counter.v[0] += group;
      const Philox8 random = philox8(key_, counter);
      for (int i = 0; i < 4; ++i) bits[i][c] = random.v[i];
    }
  }

  uint64_t key_;
  uint32_t threshold_;
  float scale_;
  int first_head_;
};

}  // namespace llmtrain::host
