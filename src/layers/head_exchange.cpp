#include "layers/head_exchange.hpp"

#include "kernels/adapter.hpp"
#include "parallel/traffic.hpp"

namespace llmtrain {

void HeadExchange::begin(const Batch& whole, std::span<const int64_t> row_ends) {
  LLMTRAIN_CHECK(std::ssize(row_ends) == count_, "every rank has rows of the batch");
  whole_ = whole;
  row_ends_.assign(row_ends.begin(), row_ends.end());
}

int64_t HeadExchange::scratch_bytes(DType dtype, int64_t rows, int64_t ranks, int64_t columns) {
  constexpr int64_t max_parts = 3;
  const int64_t padding = 2 * max_parts * ranks * Arena::aligned(1);  // a block of a message is aligned
  return 2 * rows * columns * static_cast<int64_t>(size_of(dtype)) + padding;
}

void HeadExchange::to_heads(const Tensor& heads, const Tensor& rows, std::span<const int64_t> parts, Arena& arena,
                            Stream& stream) {
  Arena::Frame frame(arena);
  sends_.clear();
  receives_.clear();
  for (int rank = 0; rank < count_; ++rank) {
    BlockPlace from, to{begin_of(index_), 0};
    for (const int64_t columns : parts) {
      const int64_t width = columns / count_;
      const Tensor block = frame.take(rows.dtype, {rows.dim(0), width});
      get_block(block, rows, {0, from.column + rank * width}, 1, false, stream);
      if (rank == index_) {
        set_block(heads, to, block, 1, stream);
      } else {
        sends_.push_back({block, first_ + rank});
        receives_.push_back({frame.take(rows.dtype, {rows_of(rank), width}), first_ + rank});
      }
      from.column += columns;
      to.column += width;
    }
  }
  exchange(stream);
  auto received = receives_.begin();
  for (int rank = 0; rank < count_; ++rank) {
    BlockPlace to{begin_of(rank), 0};
    for (size_t part = 0; part < parts.size() && rank != index_; ++part) {
      set_block(heads, to, received->data, 1, stream);
      to.column += received++->data.dim(1);
    }
  }
}

void HeadExchange::to_rows(const Tensor& rows, const Tensor& heads, std::span<const int64_t> parts, Arena& arena,
                           Stream& stream) {
  Arena::Frame frame(arena);
  sends_.clear();
  receives_.clear();
  for (int rank = 0; rank < count_; ++rank) {
    BlockPlace from{begin_of(rank), 0}, to;
    for (const int64_t columns : parts) {
      const int64_t width = columns / count_;
      const Tensor block = frame.take(rows.dtype, {rows_of(rank), width});
      get_block(block, heads, from, 1, false, stream);
      if (rank == index_) {
        set_block(rows, {0, to.column + rank * width}, block, 1, stream);
      } else {
        sends_.push_back({block, first_ + rank});
        receives_.push_back({frame.take(rows.dtype, {rows.dim(0), width}), first_ + rank});
      }
      from.column += width;
      to.column += columns;
    }
  }
  exchange(stream);
  auto received = receives_.begin();
  for (int rank = 0; rank < count_; ++rank) {
    int64_t column = 0;
    for (size_t part = 0; part < parts.size() && rank != index_; ++part) {
      const Tensor& block = received++->data;
      set_block(rows, {0, column + rank * block.dim(1)}, block, 1, stream);
      column += parts[part];
    }
  }
}

void HeadExchange::exchange(Stream& stream) {
  const TrafficScope scope(TrafficAxis::context);
  communicator_.send_and_receive(sends_, receives_, stream).finish(stream);
}

}  // namespace llmtrain
