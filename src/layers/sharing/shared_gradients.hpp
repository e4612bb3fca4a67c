#pragma once
#include <vector>

#include "layers/linear.hpp"

namespace llmtrain {

/// Gradients of the parameters that all blocks of a split layer share (norms of queries and keys, A or B of adapters):
/// each block writes its part, and the sum over the blocks is added to the gradient. During its life ParamRef::gradient
/// returns the current block's part of these.
class SharedGradients {
 public:
  /// `groups`: maximum number of groups of rows whose gradients are apart; with 1 all rows are of the group that is
  /// set.
  SharedGradients(Context& ctx, Arena::Frame& frame, std::vector<SharedParam> params, int64_t groups);
  ~SharedGradients() { ctx_.shared = nullptr; }
  SharedGradients(const SharedGradients&) = delete;
  SharedGradients& operator=(const SharedGradients&) = delete;

  void begin_block();
  void end_block();
  /// Adds the sums to the gradients. Collective.
  void finish();

  /// The current block's part of the gradient of a group; empty if the parameter is not shared.
  Tensor find(const ParamRef& param, int64_t group) const;
  /// Elements of the gradients of a group, each with a gap up to the next cache line.
  static int64_t elements_of(const std::vector<SharedParam>& params);
  static int64_t scratch_bytes(const TensorShare& share, const std::vector<SharedParam>& params, int64_t groups);

 private:
  Tensor part(const Tensor& of_all, size_t index, int64_t group) const;

  Context& ctx_;
  std::vector<SharedParam> params_;
  int64_t groups_, elements_;
  std::optional<BlockSum> sum_;
  Tensor current_;  ///< fp32 [groups, elements]
};

}  // namespace llmtrain
