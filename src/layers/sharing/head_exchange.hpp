#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "core/arena.hpp"
#include "kernels/adapter.hpp"
#include "parallel/communicator.hpp"

namespace llmtrain {

/// Attention of a micro-batch whose rows several ranks share (Ulysses, Jacobs et al. 2023, arXiv 2309.14509): before
/// and after it a rank has some rows of all heads, during it all rows of some heads. Each head is computed as on one
/// rank, with the same bits. Every call is collective over these ranks.
class HeadExchange {
 public:
  /// `meanwhile` is called while messages are awaited.
  HeadExchange(Communicator& ranks, Transfer::Meanwhile meanwhile) : ranks_(ranks), meanwhile_(std::move(meanwhile)) {}

  /// The ends of each rank's rows in the batch.
  void set_row_ends(std::span<const int64_t> row_ends);

  /// Scratch bytes of an exchange of at most `rows` of each of `ranks` ranks, with so many columns in all heads.
  static int64_t scratch_bytes(DType dtype, int64_t rows, int64_t ranks, int64_t columns);

  /// rows [n, sum of parts] -> heads [N, sum of parts / ranks]: of each part (queries, keys, values), a run of columns
  /// that the ranks divide, rank i has the i-th run of columns. Both in one dtype.
  void to_heads(const Tensor& heads, const Tensor& rows, std::span<const int64_t> parts, Arena& arena, Stream& stream) {
    exchange(heads, rows, true, parts, arena, stream);
  }
  /// The reverse.
  void to_rows(const Tensor& rows, const Tensor& heads, std::span<const int64_t> parts, Arena& arena, Stream& stream) {
    exchange(rows, heads, false, parts, arena, stream);
  }
  /// Numbers of heads, which lie apart: of_heads [heads of this rank, N] -> of_rows [heads of all ranks, n], fp32.
  void numbers_to_rows(const Tensor& of_rows, const Tensor& of_heads, Arena& arena, Stream& stream);
  /// Scratch bytes of that, for so many heads of this rank.
  static int64_t numbers_scratch_bytes(int64_t heads, int64_t rows, int64_t ranks) {
    return ranks * Arena::aligned(heads * rows * static_cast<int64_t>(sizeof(float)));
  }

 private:
  int64_t begin_of(int rank) const { return rank == 0 ? 0 : row_ends_[static_cast<size_t>(rank) - 1]; }
  int64_t rows_of(int rank) const { return row_ends_[static_cast<size_t>(rank)] - begin_of(rank); }
  BlockPlace place(bool in_rows, int rank, int64_t column, int64_t width) const;
  void exchange(const Tensor& to, const Tensor& from, bool from_rows, std::span<const int64_t> parts, Arena& arena,
                Stream& stream);
  void transfer(Stream& stream);

  Communicator& ranks_;
  Transfer::Meanwhile meanwhile_;
  std::vector<int64_t> row_ends_;
  std::vector<Communicator::Message> sends_, receives_;
};

}  // namespace llmtrain
