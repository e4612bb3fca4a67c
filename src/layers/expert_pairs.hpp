#pragma once
#include <array>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "kernels/experts.hpp"
#include "layers/context.hpp"
#include "layers/mlp.hpp"
#include "layers/sharing/expert_exchange.hpp"
#include "layers/sharing/expert_relay.hpp"

namespace llmtrain {

/// The experts of a layer as far as rows move to them.
struct PairShape {
  int64_t experts, per_token;  ///< E, k
  int64_t first;               ///< that of this rank's first block of matrices
  int64_t of_block, count;     ///< those of such a block, of which each of `ranks` has as many, and those of this rank
  int64_t channels;            ///< C
  int64_t hidden, activated;   ///< columns of MlpSaved
  int64_t groups, ranks;       ///< see Experts
  bool dropout;                ///< of adapters
};

/// Tensors of a pass that say which pairs there are; see Routing and sort_pairs().
struct PairTensors {
  Tensor order, ends, weights;
};

/// The rows of a run, one expert's after the other's: of each expert those of this rank's pairs, or, where ranks share
/// experts, those of all ranks, one after the other.
struct ExpertRows {
  int64_t count = 0;
  std::vector<int64_t> of_expert;
  Batch batch;            ///< what adapters see of them
  Tensor weights, order;  ///< see scale_pairs(); of this rank's pairs, or of the rows
  std::array<Tensor, 2> inputs;

  /// Weights and order of rows [first, first + n).
  std::pair<Tensor, Tensor> pairs(int64_t first, int64_t n) const {
    if (order.empty()) return {weights.rows(first, n), order};
    return {weights, order.rows(first, n)};
  }
};

/// Rows on their way from a batch to this rank's experts and back, in one pass.
class ExpertPairs {
 public:
  /// `inputs`: at most two tensors [N, ..], of which experts get rows. Takes memory from the frame.
  ExpertPairs(const PairShape& shape, Context& ctx, Arena::Frame& frame, const Batch& batch, const PairTensors& tensors,
              std::span<const Tensor> inputs);
  /// Bytes of the frame for so many inputs.
  static int64_t scratch_bytes(const PairShape& shape, DType compute, int64_t rows, int64_t inputs);

  /// True if rows move between ranks.
  bool shares() const { return exchange_ != nullptr; }
  /// Rows of a run, at most: as many as one expert may have.
  int64_t max_rows() const { return max_rows_; }
  /// Number of experts of the longest run from expert i on, or down to it, of at most `most`. The same on all ranks.
  int64_t run_length(int64_t i, int64_t most, bool downwards) const;
  /// Rows of a run of this rank's experts, until the next call. scratch: max_rows() rows [C] of at least the inputs'
  /// width; its contents are lost.
  ExpertRows open(const ExpertRun& run, const Tensor& scratch);
  /// Ends of the blocks of rows (Context::row_block_ends) of expert i: of the blocks of this rank's rows, or of those
  /// of all ranks that have a group of gradients in this round. Empty: all rows are one block.
  std::vector<int64_t> block_ends(int64_t i) const;
  /// Memory for the hidden layer of an expert whose rows are not saved; empty where ranks do not share experts.
  MlpSaved take_hidden(Arena::Frame& frame, DType compute) const;
  /// The part of what is saved of this rank's pairs that a run has; `buffers` where nothing is.
  MlpSaved of(const MlpSaved& saved, const ExpertRun& run, const MlpSaved& buffers) const;

  /// Memory for the derivatives by the weights of a run's pairs; see scale_pairs_backward().
  Tensor weight_gradients(const Tensor& dweights, int64_t count) const;
  /// Adds rows [count, C] of a run, fp32, to their rows of `sum`, unless they are empty: now, or in add_returned(), in
  /// the order of the experts. `weights`: the derivatives of the run are there.
  void add(const Tensor& sum, const Tensor& rows, const ExpertRun& run, bool ascending, bool weights);
  /// True if experts of other ranks have returned something of this rank's pairs, once all have run.
  bool has_returned() const { return shares() && order_.dim(0) > 0; }
  /// Adds what the experts of this rank's block of matrices have returned to `sum`, unless it is empty, and sets their
  /// elements of dweights [N, k], unless it is empty.
  void add_returned(int64_t block, const Tensor& sum, const Tensor& dweights, bool ascending);

 private:
  /// Pairs of a rank: those of an expert are consecutive.
  struct Ends {
    std::span<const int64_t> of;  ///< [blocks, E]
    int64_t experts;

    int64_t begin(int64_t expert) const { return expert == 0 ? 0 : end(expert - 1); }
    int64_t end(int64_t expert) const { return of[of.size() - static_cast<size_t>(experts - expert)]; }
    int64_t count(int64_t expert) const { return end(expert) - begin(expert); }
  };
  int64_t ranks() const { return shares() ? exchange_->ranks() : 1; }
  int64_t rank() const { return shares() ? exchange_->rank() : 0; }
  Ends ends(int64_t rank) const;
  Ends own() const { return ends(rank()); }
  /// The i-th expert of a rank.
  int64_t number(int64_t i, int64_t rank) const {
    const int64_t each = shape_.of_block / shape_.ranks;
    return shape_.first + i / each * shape_.of_block + rank * each + i % each;
  }
  int64_t number(int64_t i) const { return number(i, rank()); }
  void fetch_ends(const Tensor& ends);
  Tensor sorted(Arena::Frame& frame, const Tensor& x, int64_t k) const;
  Tensor order(int64_t expert) const { return order_.rows(own().begin(expert), own().count(expert)); }
  /// Rows of this rank's expert i, of all ranks.
  int64_t rows_of(int64_t i) const { return rows_of(i, rank()); }
  int64_t rows_of(int64_t i, int64_t rank) const;
  /// Pairs of a run, where ranks do not share experts.
  Tensor of_pairs(const Tensor& pairs, const ExpertRun& run) const;
  enum class Way : uint8_t { to_experts, to_experts_here, back };  ///< to all of them, or to those of this node alone
  void move(const Tensor& pairs, const Tensor& rows, const ExpertRun& run, Way way);
  void relay(const Tensor& x, const Tensor& rows, const ExpertRun& run, const Tensor& scratch);

  PairShape shape_;
  Context& ctx_;
  ExpertExchange* exchange_;
  std::optional<ExpertRelay> relay_;
  Tensor order_;
  std::vector<int64_t> fetched_;   ///< ends, from a device
  std::span<const int64_t> ends_;  ///< of all ranks
  int64_t blocks_;                 ///< of rows, of a rank
  int64_t max_rows_ = 0;
  Tensor weights_;                             ///< [N, k], or those of the pairs in their order
  std::vector<Tensor> batch_inputs_, inputs_;  ///< as given, and of the pairs where ranks share experts
  std::vector<Tensor> row_buffers_;            ///< rows of inputs of a run
  Tensor ids_, offsets_;                       ///< places of rows, for dropout
  Tensor own_ids_, own_offsets_;               ///< of the open run
  Tensor own_weights_, dweights_;              ///< of the open run, where ranks share experts
  Tensor returned_, returned_weights_;         ///< of pairs, in their order
};

}  // namespace llmtrain
