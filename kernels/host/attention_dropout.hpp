#pragma once
// Dropout masks of a [keys, queries] tile of probabilities.

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/dropout.hpp"
#include "kernels/host/attention_plan.hpp"

namespace llmtrain::host {

/// What identifies the rows of a tile: pointers to its first key and first query.
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

/// keep[64, 64] = Dropout::scale of element (head * 2^24 + query offset) * 2^24 + key offset. Keys of consecutive
/// offsets share one evaluation of Philox by four. Keys beyond the tile get 0.
class DropoutTile {
 public:
  explicit DropoutTile(const Dropout& dropout)
      : key_(dropout.key),
        // random_uniform(bits) < p  <=>  bits + 1/2 < p 2^32
        threshold_(static_cast<uint32_t>(std::ceil(double{dropout.probability} * 4294967296.0 - 0.5))),
        scale_(1.0f / (1.0f - dropout.probability)) {}

  void fill(float* keep, int head, const TileRows& rows) const {
    Counters base{};
    for (int c = 0; c < rows.queries; ++c) {
      const uint64_t row = (static_cast<uint64_t>(head) << 24) + static_cast<uint32_t>(rows.query_offsets[c]);
      base.low[c] = row << 22;  // element / 4
      base.high[c] = static_cast<uint64_t>(rows.query_ids[c]);
    }
    uint32_t bits[4][attention_block];
    int64_t evaluated = -1;
    for (int r = 0; r < rows.keys; ++r) {
      const uint32_t offset = static_cast<uint32_t>(rows.key_offsets[r]);
      if (evaluated != offset >> 2) {
        evaluated = offset >> 2;
        evaluate(bits, base, offset >> 2);
      }
      const uint32_t* random = bits[offset & 3];
      for (int c = 0; c < attention_block; ++c) {
        keep[r * attention_block + c] = random[c] < threshold_ ? 0.0f : scale_;
      }
    }
    std::fill(keep + rows.keys * attention_block, keep + attention_block * attention_block, 0.0f);
  }

 private:
  struct Counters {
    uint64_t low[attention_block];
    uint64_t high[attention_block];
  };

  void evaluate(uint32_t (*bits)[attention_block], const Counters& base, uint32_t group) const {
    for (int c = 0; c < attention_block; ++c) {
      const Philox4 r = philox4x32(key_, base.high[c], base.low[c] + group);
      for (int i = 0; i < 4; ++i) bits[i][c] = r.v[i];
    }
  }

  uint64_t key_;
  uint32_t threshold_;
  float scale_;
};

}  // namespace llmtrain::host
