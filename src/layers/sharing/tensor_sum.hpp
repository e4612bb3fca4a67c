#pragma once
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "core/arena.hpp"
#include "core/params.hpp"
#include "parallel/communicator.hpp"

namespace llmtrain {

/// Sums over the blocks of split matrices (parallel.tensor_blocks): fp32, along a binary tree over the blocks, so that
/// their bits do not depend on the number of ranks that share them. Every call is collective over these ranks.
class TensorSum {
 public:
  /// `ranks`: those that have the blocks, in the order of the blocks, each as many; null if this rank has all.
  /// `meanwhile` is called while they are awaited.
  TensorSum(const TensorShare& share, Communicator* ranks, Transfer::Meanwhile meanwhile = {})
      : share_(share), ranks_(ranks), meanwhile_(std::move(meanwhile)) {
    check();
  }

  const TensorShare& share() const { return share_; }
  /// Completes the sum of this rank's blocks, [..] fp32, by those of the others. scratch: fp32 [scratch_elements()].
  void add_ranks(const Tensor& sum, const Tensor& scratch, Stream& stream);
  /// The sum of the terms of this rank's blocks and of all others; terms[0] may be the sum. The terms are undefined
  /// afterwards.
  void add_terms(const Tensor& sum, std::span<const Tensor> terms, const Tensor& scratch, Stream& stream);
  static int64_t scratch_elements(const TensorShare& share, int64_t elements);
  /// Fills the rows of a tensor [S, ..] of any dtype, of which this rank has set those of its own blocks.
  void gather(const Tensor& blocks, Stream& stream);

 private:
  void check() const;
  int64_t ranks_of_tree() const { return share_.blocks / share_.count; }
  void exchange(Stream& stream);

  TensorShare share_;
  Communicator* ranks_;
  Transfer::Meanwhile meanwhile_;
  std::vector<Communicator::Message> sends_, receives_;
  std::vector<Tensor> terms_;
};

/// The sum over all blocks of terms that this rank's blocks write one after the other.
class BlockSum {
 public:
  /// The sum is fp32 [rows, columns], with a frame of the arena for all that it needs.
  BlockSum(TensorSum& tensor, Arena::Frame& frame, int64_t rows, int64_t columns);
  /// Memory, undefined, for the term of the next block.
  Tensor next() { return levels_[depth_++]; }
  /// The term is written.
  void add(Stream& stream);
  /// Returns the sum, once all of this rank's blocks are added. Collective.
  Tensor finish(Stream& stream);

  static int64_t scratch_bytes(const TensorShare& share, int64_t elements);

 private:
  TensorSum& tensor_;
  std::vector<Tensor> levels_;  ///< sums that await their partners in the tree
  Tensor scratch_;
  size_t depth_ = 0;
  int64_t added_ = 0;
};

}  // namespace llmtrain
