#include "layers/head_exchange.hpp"

#include "core/error.hpp"
#include "kernels/adapter.hpp"
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

void HeadExchange::to_heads(const Tensor& heads, const Tensor& rows, std::span<const int64_t> parts, Arena& arena,
                            Stream& stream) {
  Arena::Frame frame(arena);
  sends_.clear();
  receives_.clear();
  for (int rank = 0; rank < ranks_.size(); ++rank) {
    BlockPlace from, to{begin_of(ranks_.rank()), 0};
    for (const int64_t columns : parts) {
      const int64_t width = columns / ranks_.size();
      const Tensor block = frame.take(rows.dtype, {rows.dim(0), width});
      get_block(block, rows, {0, from.column + rank * width}, 1, false, stream);
      if (rank == ranks_.rank()) {
        set_block(heads, to, block, 1, stream);
      } else {
        sends_.push_back({block, rank});
        receives_.push_back({frame.take(rows.dtype, {rows_of(rank), width}), rank});
      }
      from.column += columns;
      to.column += width;
    }
  }
  transfer(stream);
  auto received = receives_.begin();
  for (int rank = 0; rank < ranks_.size(); ++rank) {
    BlockPlace to{begin_of(rank), 0};
    for (size_t part = 0; part < parts.size() && rank != ranks_.rank(); ++part) {
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
  for (int rank = 0; rank < ranks_.size(); ++rank) {
    BlockPlace from{begin_of(rank), 0}, to;
    for (const int64_t columns : parts) {
      const int64_t width = columns / ranks_.size();
      const Tensor block = frame.take(rows.dtype, {rows_of(rank), width});
      get_block(block, heads, from, 1, false, stream);
      if (rank == ranks_.rank()) {
        set_block(rows, {0, to.column + rank * width}, block, 1, stream);
      } else {
        sends_.push_back({block, rank});
        receives_.push_back({frame.take(rows.dtype, {rows.dim(0), width}), rank});
      }
      from.column += width;
      to.column += columns;
    }
  }
  transfer(stream);
  auto received = receives_.begin();
  for (int rank = 0; rank < ranks_.size(); ++rank) {
    int64_t column = 0;
    for (size_t part = 0; part < parts.size() && rank != ranks_.rank(); ++part) {
      const Tensor& block = received++->data;
      set_block(rows, {0, column + rank * block.dim(1)}, block, 1, stream);
      column += parts[part];
    }
  }
}

}  // namespace llmtrain
