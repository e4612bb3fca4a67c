#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "core/arena.hpp"
#include "core/batch.hpp"
#include "parallel/communicator.hpp"

namespace llmtrain {

/// Attention of a micro-batch whose rows several ranks share (Ulysses, Jacobs et al. 2023, arXiv 2309.14509): before
/// and after it a rank has some rows of all heads, during it all rows of some heads. Each head is computed as on one
/// rank, with the same bits. Every call is collective over these ranks.
class HeadExchange {
 public:
  /// Ranks [first, first + count) of the communicator, of which this is number `index`.
  HeadExchange(Communicator& communicator, int first, int count, int index)
      : communicator_(communicator), first_(first), count_(count), index_(index) {}

  int64_t ranks() const { return count_; }
  /// Attention sees this batch; `row_ends`: by rank, the ends of their rows in it.
  void begin(const Batch& whole, std::span<const int64_t> row_ends);
  const Batch& whole() const { return whole_; }

  /// Scratch bytes of an exchange of at most `rows` of each of `ranks` ranks, with so many columns in all heads.
  static int64_t scratch_bytes(DType dtype, int64_t rows, int64_t ranks, int64_t columns);

  /// rows [n, sum of parts] -> heads [N, sum of parts / ranks()]: of each part (queries, keys, values), a run of
  /// columns, rank i has the i-th run of columns. Both in one dtype.
  void to_heads(const Tensor& heads, const Tensor& rows, std::span<const int64_t> parts, Arena& arena, Stream& stream);
  /// The reverse.
  void to_rows(const Tensor& rows, const Tensor& heads, std::span<const int64_t> parts, Arena& arena, Stream& stream);

 private:
  int64_t begin_of(int rank) const { return rank == 0 ? 0 : row_ends_[static_cast<size_t>(rank) - 1]; }
  void exchange(Stream& stream);
  int64_t rows_of(int rank) const { return row_ends_[static_cast<size_t>(rank)] - begin_of(rank); }

  Communicator& communicator_;
  int first_, count_, index_;
  Batch whole_;
  std::vector<int64_t> row_ends_;
  std::vector<Communicator::Message> sends_, receives_;
};

}  // namespace llmtrain
