#include <algorithm>
#include <cstring>

#include "core/error.hpp"
#include "kernels/dynamic_map.hpp"
#include "kernels/quantize.hpp"
#include "kernels/quantized_matrix.hpp"
#include "kernels/rounded_product.hpp"

namespace llmtrain {

namespace {

/// Scale of a block that is scale `i` of a chunk's record and block `block` of its slice. `map`: signed dynamic map.
float block_scale(const Quantization& q, const uint8_t* record, int64_t i, const float* table, int64_t block,
                  const float* map) {
  const uint8_t* at = record + code_bytes(q) + i * scale_bytes(q);
  if (q.double_quantization) return rounded_product(map[*at], table[1 + block / nested_block]) + table[0];
  float scale = 0;
  memcpy(&scale, at, sizeof scale);
  return scale;
}

}  // namespace

QuantizedMatrix QuantizedMatrix::part(int64_t first, int64_t number) const {
  LLMTRAIN_CHECK(first >= 0 && number >= 0 && first + number <= rows, "rows outside of the matrix");
  QuantizedMatrix result{format, number, columns};
  for (int i = 0; i < count; ++i) {
    QuantizedRows slice = slices[static_cast<size_t>(i)];
    const int64_t begin = std::max(first, slice.first_row),
                  end = std::min(first + number, slice.first_row + slice.rows);
    if (begin >= end) continue;
    slice.skipped += begin - slice.first_row;
    slice.first_row = begin - first;
    slice.rows = end - begin;
    result.slices[static_cast<size_t>(result.count++)] = slice;
  }
  return result;
}

void dequantize_on_host(const Quantization& format, const StoredChunks& stored, int64_t first, int64_t count,
                        float* out) {
  const bool by_rows = format.type == QuantizedType::int8;
  const float* levels = by_rows ? nullptr : levels_of(format.type).data();
  for (int64_t e = first; e < first + count; ++e) {
    const uint8_t* record = stored.records + (e / chunk_elements - stored.first_chunk) * chunk_bytes(format);
    const int64_t at = e % chunk_elements;
    if (by_rows) {
      *out++ = rounded_product(static_cast<float>(static_cast<int8_t>(record[at])), stored.table[e / stored.columns]) *
               int8_step;
    } else {
      const uint8_t code = at % 2 == 0 ? record[at / 2] >> 4 : record[at / 2] & 15;
      *out++ = levels[code] * block_scale(format, record, at / format.block_size, stored.table, e / format.block_size,
                                          signed_dynamic_map.data());
    }
  }
}

}  // namespace llmtrain
