#include "layers/sharing/head_exchange.hpp"

#include "core/error.hpp"
#include "parallel/traffic.hpp"

namespace llmtrain {

void HeadExchange::set_row_ends(std::span<const int64_t> row_ends) {
  LLMTRAIN_CHECK(std::ssize(row_ends) == ranks_.size(), "every rank has rows of the batch");
  row_ends_.assign(row_ends.begin(), row_ends.end());
}

void HeadExchange::transfer(Stream& stream) {
  Transfer transfer = [&] {
    const TrafficScope scope(TrafficAxis::context);
    return ranks_.send_and_receive(sends_, receives_, stream);
  }();
  transfer.finish(stream, meanwhile_);
}

int64_t HeadExchange::scratch_bytes(DType dtype, int64_t rows, int64_t ranks, int64_t columns) {
  constexpr int64_t max_parts = 3;
  const int64_t padding = 2 * max_parts * ranks * Arena::aligned(1);  // a block of a message is aligned
  return 2 * rows * columns * static_cast<int64_t>(size_of(dtype)) + padding;
}

/// The block of a part from `column` on that a rank has, in rows of all heads or in all rows of some heads.
BlockPlace HeadExchange::place(bool in_rows, int rank, int64_t column, int64_t width) const {
  return in_rows ? BlockPlace{0, column + rank * width} : BlockPlace{begin_of(rank), column / ranks_.size()};
}

void HeadExchange::exchange(const Tensor& to, const Tensor& from, bool from_rows, std::span<const int64_t> parts,
                            Arena& arena, Stream& stream) {
  const int ranks = ranks_.size(), me = ranks_.rank();
  Arena::Frame frame(arena);
  sends_.clear();
  receives_.clear();
  for (int rank = 0; rank < ranks; ++rank) {
    const int64_t own = rows_of(me), others = rows_of(rank);
    int64_t column = 0;
    for (const int64_t columns : parts) {
      LLMTRAIN_CHECK(columns % ranks == 0, "the ranks divide the columns of a part");
      const int64_t width = columns / ranks;
      const Tensor block = frame.take(from.dtype, {from_rows ? own : others, width});
      get_block(block, from, place(from_rows, rank, column, width), 1, false, stream);
      if (rank == me) {
        set_block(to, place(!from_rows, rank, column, width), block, 1, stream);
      } else {
        sends_.push_back({block, rank});
        receives_.push_back({frame.take(from.dtype, {from_rows ? others : own, width}), rank});
      }
      column += columns;
    }
  }
  transfer(stream);
  auto received = receives_.begin();
  for (int rank = 0; rank < ranks; ++rank) {
    int64_t column = 0;
    for (size_t part = 0; part < parts.size() && rank != me; ++part) {
      set_block(to, place(!from_rows, rank, column, parts[part] / ranks), received++->data, 1, stream);
      column += parts[part];
    }
  }
}

void HeadExchange::numbers_to_rows(const Tensor& of_rows, const Tensor& of_heads, Arena& arena, Stream& stream) {
  const int ranks = ranks_.size(), me = ranks_.rank();
  const int64_t heads = of_heads.dim(0);
  Arena::Frame frame(arena);
  sends_.clear();
  receives_.clear();
  for (int rank = 0; rank < ranks; ++rank) {
    const Tensor theirs = of_rows.rows(rank * heads, heads);
    const Tensor block = rank == me ? theirs : frame.take(DType::f32, {heads, rows_of(rank)});
    get_block(block, of_heads, {0, begin_of(rank)}, 1, false, stream);
    if (rank == me) continue;
    sends_.push_back({block, rank});
    receives_.push_back({theirs, rank});
  }
  transfer(stream);
}

}  // namespace llmtrain
