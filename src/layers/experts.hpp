#pragma once
#include <algorithm>
#include <optional>
#include <vector>

#include "kernels/experts.hpp"
#include "layers/expert_pairs.hpp"
#include "layers/grouped_linear.hpp"
#include "layers/mlp.hpp"
#include "layers/sharing/split_layer.hpp"

namespace llmtrain {

class ExpertSum;

struct ExpertsSaved {
  Routing routing;       ///< of all experts
  Tensor order;          ///< int32 [N k], see sort_pairs()
  Tensor ends;           ///< int64 [ranks groups E]
  MlpSaved pairs;        ///< of this rank's pairs, in their order: hidden and activated [N k, ..]; one rank
  Tensor gate;           ///< fp32 [N, 1], of the shared expert
  Tensor shared_output;  ///< fp32 [N, C], before its gate
  std::vector<MlpSaved> shared;

  PairTensors of_pairs() const { return {order, ends, routing.weights}; }
};

/// The MLP of a transformer layer as a mixture of experts: y = sum over the chosen experts e of w_e mlp_e(x), and
/// sigmoid(g x) mlp_shared(x), or mlp_shared(x), where there is a shared expert. Every row reaches all of its experts.
/// The sum is fp32, over experts in ascending order, rounded once; the weight multiplies the input of an expert's last
/// matrix, so that the gradient of the weight needs no further product. No product depends on the other rows of a
/// batch. Blocks of a split layer have whole experts each, consecutive ones, and a block of the shared one.
///
/// Rows go to the rank that has their expert, if ranks share them (ExpertExchange), and come back as fp32 terms
/// of the sum, which the rank of the row adds. An expert keeps nothing of them for the backward pass, to which they are
/// sent again.
struct Experts {
  using Saved = ExpertsSaved;

  RoutingRule rule;
  int layer = 0;            ///< number among the layers with experts
  int64_t channels = 0;     ///< C
  Linear router;            ///< [E, C]
  ParamRef selection_bias;  ///< [E] or none; not trained by gradients
  /// Experts of this rank, by block of matrices: all, or those that it has of `ranks`. Their last matrices have no
  /// bias.
  std::vector<Mlp> mlps;
  /// Biases [C] of the last matrices, which the weights multiply too; or none. They are not split, and have a gradient
  /// for each group of rows.
  std::vector<ParamRef> down_biases;
  int64_t first = 0;  ///< number of the first expert of its first block
  std::optional<SplitLayer<Mlp>> shared;
  Linear shared_up;                   ///< what the blocks of its first matrix share, if it is split
  std::optional<Linear> shared_gate;  ///< [1, C]
  std::optional<TensorShare> share;   ///< set if it is split
  int64_t groups = 1;                 ///< groups of rows whose gradients are apart
  int64_t ranks = 1;                  ///< that share experts
  bool joins = false;                 ///< products of several experts may be one call; else a run has one
  /// Units of consecutive experts, as many each, which a pass gathers in turn; empty: they are the layer's.
  std::vector<UnitGroup> units;

  template <class F>
  void visit_saved(ExpertsSaved& s, DType compute, int64_t rows, const F& f, const char* part = "") const {
    const int64_t pairs = rows * rule.per_token;
    f(s.routing.scores, SavedSpec{part, ".scores", DType::f32, rows, rule.experts});
    f(s.routing.log_sum, SavedSpec{part, ".log_sum", DType::f32, rows, 0});
    f(s.routing.choices, SavedSpec{part, ".choices", DType::i32, rows, rule.per_token});
    f(s.routing.weights, SavedSpec{part, ".weights", DType::f32, rows, rule.per_token});
    f(s.order, SavedSpec{part, ".order", DType::i32, pairs, 0});
    f(s.ends, SavedSpec{part, ".ends", DType::i64, ranks * groups * rule.experts, 0});
    if (ranks == 1) mlps.front().visit_saved(s.pairs, compute, pairs, f, part);
    if (!shared) return;
    shared->visit_saved(s.shared, compute, rows, f, part);
    if (!shared_gate) return;
    f(s.gate, SavedSpec{part, ".gate", DType::f32, rows, 1});
    f(s.shared_output, SavedSpec{part, ".shared_output", DType::f32, rows, channels, Recompute::block});
  }
  void set_groups(int64_t count) {
    groups = count;
    if (shared) shared->groups = count;
  }
  /// Scratch bytes for forward and backward.
  int64_t scratch_bytes(DType compute, int64_t rows) const;
  int64_t workspace_bytes(DType compute, int64_t rows, bool training) const;

  /// Chooses experts, unless `again`, and computes what project() reads of the shared expert. Tensors that `kept` lacks
  /// are recomputed.
  void forward_hidden(Context& ctx, const Batch& batch, const Tensor& x, const ExpertsSaved& saved,
                      const ExpertsSaved& kept, bool again) const;
  /// y [N, C], compute dtype or fp32.
  void project(Context& ctx, const Batch& batch, const Tensor& y, const Tensor& x, const ExpertsSaved& saved,
               const ExpertsSaved& kept) const;
  /// An empty dx is not computed. Hidden layers of experts that `kept` lacks are recomputed.
  void backward(Context& ctx, const Batch& batch, const Tensor& dx, const Tensor& dy, const Tensor& x,
                const ExpertsSaved& saved, const ExpertsSaved& kept) const;
  // A rank without rows runs these passes instead: it takes part in gathers, and has the experts of others' rows.
  void forward_idle(Context& ctx, DType compute, const ExpertsSaved& saved) const;
  void backward_idle(Context& ctx, DType compute, const ExpertsSaved& saved, bool input_gradient) const;
  /// Calls f(mlp) for this rank's experts, whose weights are there if those of the layer are.
  template <class F>
  void each_with_weights(ParamStore& params, const F& f) const {
    for (size_t i = 0; i < mlps.size(); ++i) {
      const UnitGroup* own = units.empty() ? nullptr : &units[i / (mlps.size() / units.size())];
      if (own != nullptr) own->acquire(params);
      f(mlps[i]);
      if (own != nullptr) own->release(params);
    }
  }
  /// Starts to gather the first units of the forward pass, or of the backward pass.
  void prefetch(ParamStore& params, bool backward) const;
  /// True if the backward pass needs the gradients of hidden layers.
  bool hidden_gradient(bool input) const;
  /// FLOPs of the products of one token.
  double product_flops(bool input_gradient) const;

 private:
  /// Calls f(i) for the units, or once without units, with their weights: in the backward pass from the last one on.
  template <class F>
  void each_unit(Context& ctx, bool backward, const F& f) const;
  /// Calls f(run, begins, ends) for runs of this rank's experts in the same order, where a run may have the first or
  /// the last one of a block of matrices.
  template <class F>
  void each_run(Context& ctx, const ExpertPairs& pairs, bool backward, const F& f) const;
  // Passes of a run (expert_run.cpp).
  using Matrix = Linear Mlp::*;
  std::vector<LinearRows> rows_of(const ExpertPairs& pairs, const ExpertRun& run, const ExpertRows& rows,
                                  Matrix matrix) const;
  void run_forward(Context& ctx, const ExpertPairs& pairs, const ExpertRun& run, const ExpertRows& rows, Matrix matrix,
                   const Tensor& y, const Tensor& x) const;
  /// The hidden layer; see Mlp::forward_hidden().
  void run_hidden(Context& ctx, const ExpertPairs& pairs, const ExpertRun& run, const ExpertRows& rows,
                  const MlpSaved& own, const MlpSaved& kept, bool again) const;
  void run_down(Context& ctx, const ExpertPairs& pairs, const ExpertRun& run, const ExpertRows& rows, const Tensor& y,
                const Tensor& x) const;
  /// Tensors of a run's rows.
  struct RunBackward {
    Tensor x, dy;
    Tensor hidden, activated;  ///< the derivative of the activation, then the gradient; what it gives
    Tensor scaled;             ///< `activated` times the weights of the pairs
    bool goes_on;              ///< past the last matrices
    Tensor dscaled;
    Tensor dx;  ///< or empty
    Tensor dweights;
  };
  void run_backward(Context& ctx, const ExpertPairs& pairs, const ExpertRun& run, const ExpertRows& rows,
                    const RunBackward& r) const;
  void run_parameters(Context& ctx, const ExpertPairs& pairs, const ExpertRun& run, const ExpertRows& rows,
                      const RunBackward& r) const;
  void run_activation(Context& ctx, const ExpertRun& run, const ExpertRows& rows, const RunBackward& r) const;
  void backward_down_biases(Context& ctx, const ExpertPairs& pairs, const ExpertRun& run, const ExpertRows& rows,
                            const Tensor& dy) const;

  template <class F>
  int64_t largest(const F& bytes) const;
  int64_t blocks() const { return share ? share->count : 1; }
  void forward_experts(Context& ctx, const Batch& batch, ExpertSum& sum, const Tensor& x, const ExpertsSaved& saved,
                       const ExpertsSaved& kept) const;
  PairShape pair_shape() const;
  void share_ends(Context& ctx, const ExpertsSaved& saved, int64_t blocks) const;
  void choose(Context& ctx, const Batch& batch, const Tensor& x, const ExpertsSaved& saved) const;
  // Add to the gradient of the input, fp32 [N, C], or leave it out if there is none.
  void backward_experts(Context& ctx, const Batch& batch, ExpertSum* dinput, ExpertSum& dweights, const Tensor& dy,
                        const Tensor& x, const ExpertsSaved& saved, const ExpertsSaved& kept) const;
  void backward_shared(Context& ctx, const Batch& batch, const Tensor& dsum, const Tensor& dy, const Tensor& x,
                       const ExpertsSaved& saved) const;
  void backward_router(Context& ctx, const Batch& batch, const Tensor& dsum, const Tensor& dweights, const Tensor& x,
                       const ExpertsSaved& saved) const;
};

}  // namespace llmtrain
