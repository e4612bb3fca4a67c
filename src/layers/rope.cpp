#include "layers/rope.hpp"

#include "kernels/rope.hpp"

namespace llmtrain {

void Rope::plan(Arena& arena, int64_t rows) {
  if (!exists()) return;
  const auto width = 2 * static_cast<int64_t>(frequencies.size());
  arena.add(table, MemoryCategory::activations, "rope", DType::f32, {rows, width});
}

void Rope::start(Stream& stream) const {
  if (exists() && !by_length()) rope_table(table, frequencies.data(), factor, stream);
}

void Rope::prepare(const Batch& batch, int64_t first, Stream& stream) {
  first_row = first;
  if (!by_length()) return;
  rope_table_by_length(table, {frequencies.data(), long_frequencies.data(), limit, ntk_factor, factor}, batch, stream);
}

void Rope::apply(const Tensor& qkv, const Batch& batch, int64_t heads, int64_t head_dim, bool inverse,
                 Stream& stream) const {
  if (!exists()) return;
  const Tensor rows = by_length() ? table.rows(first_row, batch.tokens) : table;
  rope_apply(qkv, rows, by_length() ? Tensor() : batch.positions, heads, head_dim, inverse, stream);
}

}  // namespace llmtrain
