#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/batch.hpp"
#include "kernels/logprob.hpp"
#include "layers/sharing/head_exchange.hpp"
#include "parallel/mesh.hpp"

namespace llmtrain {

/// How the rows of a micro-batch are divided: into `blocks`, of which each of `ranks` ranks has as many. The gradients
/// of blocks are leaves of the reduction tree.
struct RowShares {
  int64_t ranks = 1, blocks = 1;

  /// First row of a block of a micro-batch of `rows`.
  int64_t begin(int64_t block, int64_t rows) const { return block * rows / blocks; }
  int64_t blocks_of_rank() const { return blocks / ranks; }
  /// Most rows that a rank has of a micro-batch.
  int64_t max_rows(int64_t rows) const { return (rows + blocks - 1) / blocks * blocks_of_rank(); }
};

/// The rows of micro-batches that this rank computes. What regards a row by itself is computed where the row is; only
/// attention sees the others, by an exchange of heads, and objectives, to which statistics are gathered.
class SharedRows {
 public:
  /// `meanwhile` is called while other ranks are awaited. The mesh outlives it.
  SharedRows(const Mesh& mesh, const RowShares& shares, const Transfer::Meanwhile& meanwhile);

  const Mesh& mesh() const { return mesh_; }
  /// Chooses a micro-batch of at least RowShares::blocks rows, and returns this rank's rows of it. The segments are
  /// those of the whole micro-batch where this rank has all rows, and none elsewhere.
  Batch choose(const Batch& whole);
  const Batch& whole() const { return whole_; }
  int64_t first_row() const { return first_; }
  /// Most rows of the micro-batch that a rank has.
  int64_t max_rows() const { return shares_.max_rows(whole_.tokens); }
  /// Own rows of tensors with a row for each row of the micro-batch.
  TokenStatistics own(const TokenStatistics& all) const { return all.rows(first_, count_); }
  TokenCotangents own(const TokenCotangents& all) const { return all.rows(first_, count_); }
  /// Gathers the rows of all ranks where each has its own.
  void gather(TokenStatistics statistics, Stream& stream);

  /// Ends of the rows of each block, whose gradients of parameters are apart; empty: one block has all rows.
  std::span<const int64_t> block_ends() const { return block_ends_; }
  /// Null where this rank has all rows.
  HeadExchange* heads() { return heads_ ? &*heads_ : nullptr; }

 private:
  const Mesh& mesh_;
  RowShares shares_;
  Transfer::Meanwhile meanwhile_;
  std::optional<HeadExchange> heads_;
  Batch whole_;
  int64_t first_ = 0, count_ = 0;
  std::vector<int64_t> block_ends_;
  std::vector<int64_t> row_borders_;  ///< by rank, and the end
};

}  // namespace llmtrain
