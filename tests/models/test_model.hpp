#pragma once
// A model with its parameters and one batch, assembled as by the trainer, for one rank.

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/workspace.hpp"
#include "layers/router_losses.hpp"
#include "models/actor_critic.hpp"
#include "models/golden.hpp"
#include "models/models.hpp"
#include "objectives/objective.hpp"
#include "parallel/communicator.hpp"

namespace llmtrain::test {

/// The shape a golden file describes.
DecoderShape shape_of(const Golden& golden);

/// A batch in host memory, as a golden file has it.
struct Rows {
  std::vector<int32_t> ids, positions, targets, segments;
};
Rows rows_of(const Golden& golden);
/// The rows of one document of `rows` alone.
Rows document_of(const Rows& rows, size_t document);

/// Ranks that share a model; without a communicator all of the test program.
struct Ranks {
  Communicator* communicator = nullptr;
  int zero_stage = 1;
  int64_t segment_elements = default_segment_elements;
  Offload offload = Offload::none;  ///< of weights and optimizer
  Communicator* tensor = nullptr;   ///< ranks that have the other blocks of split matrices; each has its own parameters
};

/// A critic beside the model: with a trunk of its own, of this shape, or a head on the model's trunk.
struct TestCritic {
  std::optional<DecoderShape> shape;
};

class TestModel {
 public:
  TestModel(const DecoderShape& shape, DType compute, int64_t max_rows, Recompute recompute = Recompute::none,
            const Ranks& ranks = {}, const std::optional<TestCritic>& critic = {});

  /// Sets every parameter, by outer name; all must be given, and whole.
  void set(const std::map<std::string, std::vector<float>>& values);
  /// Whole tensors; what this rank's blocks do not have is 0.
  std::map<std::string, std::vector<float>> parameters();

  /// Runs forward, head and backward pass over each batch, as a step with one group per batch; returns the summed loss.
  /// Gradients are summed over the batches, not divided by the number of tokens. A critic's loss is the sum of -value.
  double differentiate(const std::vector<Rows>& batches);
  /// The same for one batch of documents and an objective over them, whose sums these are. Returns the objective's
  /// first sum; without gradients unless `gradients`.
  double evaluate(const Rows& rows, const DocumentColumns& documents, Objective& objective, const Tensor& sums,
                  bool gradients);
  /// Gradient sums of the trained parameters in the last differentiate, by outer name.
  std::map<std::string, std::vector<float>> gradients();
  /// fp32 [N, V] of one batch.
  std::vector<float> logits(const Rows& rows);
  /// Summed loss of one batch without gradients.
  double score(const Rows& rows);

  /// Adds losses of routers to differentiate(), each times the number of trained tokens.
  void set_router_losses(RouterLossCoefficients coefficients) { router_->set_coefficients(coefficients); }
  bool has_router() const { return router_.has_value(); }
  RouterLosses& router() { return *router_; }

  ParamStore& params() { return *params_; }
  Context& context() { return *ctx_; }
  Decoder& decoder() { return *model_; }
  /// All memory by category.
  const Arena& arena() const { return arena_; }
  static int64_t trained(const std::vector<Rows>& batches);

 private:
  Model& model() { return both_ != nullptr ? static_cast<Model&>(*both_) : *model_; }
  Batch upload(const Rows& rows);

  Communicator& communicator_;
  DecoderShape shape_;
  std::unique_ptr<Decoder> model_, critic_;
  std::unique_ptr<ActorCritic> both_;
  std::unique_ptr<ParamStore> params_;
  Arena arena_;
  Batch buffers_;
  TokenStatistics statistics_;
  TokenCotangents cotangents_;
  Tensor logits_;
  std::optional<RouterLosses> router_;  ///< if there are experts
  DeviceBuffer memory_;
  std::optional<WorkspaceScope> workspace_;
  std::unique_ptr<Context> ctx_;
};

/// Adds the losses of routers that a golden case has.
void add_router_losses(TestModel& m, const Golden& golden);

}  // namespace llmtrain::test
