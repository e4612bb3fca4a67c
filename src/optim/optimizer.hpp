#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "optim/optimizer_config.hpp"
#include "params/param_store.hpp"
#include "params/traffic_model.hpp"

namespace llmtrain {

/// Arguments of one update. All other inputs are in the shards.
struct UpdateArgs {
  int64_t step = 1;  ///< t, from 1
  double learning_rate = 0;
  double gradient_scale = 1;      ///< 1 / trained tokens x clipping factor
  Tensor decision = {};           ///< replaces gradient_scale, see AdamwStep
  Communicator* ranks = nullptr;  ///< those of the store; for optimizers that look at whole tensors
};

/// Updates this rank's shards from their gradient sums, then the weights. The optimizer must outlive a deferred update
/// (ParamStore::update).
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  /// The state that it keeps: ParamStoreOptions::states of the stores that it updates. All values are 0 at first,
  /// except the master.
  virtual StatePlanes states() const = 0;
  /// Registers the memory that updates of this store need beside the state.
  virtual void plan(const ParamStore& /*params*/, Arena& /*arena*/) {}
  /// Tensors that one rank updates for all.
  virtual std::vector<WholeTensor> whole_tensors(const UnitStates& /*units*/) const { return {}; }
  virtual void update(ParamStore& params, const UpdateArgs& args, Stream& stream) = 0;
};

/// The factor on the sums of gradients, which a decision of the device replaces; nothing if the step does not apply.
/// For optimizers whose host needs it; waits for the stream.
std::optional<double> gradient_factor(const UpdateArgs& args, Stream& stream);
/// Rounds the shard's masters to its weights, if these are stored separately.
void round_masters(const ParamStore::Shard& shard, Stream& stream);

/// Makes the optimizer of this name. To add one, add a name to OptimizerConfig::Name, a file with a class, and a line
/// in optimizer.cpp.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerConfig& config);
std::unique_ptr<Optimizer> make_adamw(const OptimizerConfig& config);
std::unique_ptr<Optimizer> make_adamw_8bit(const OptimizerConfig& config);
std::unique_ptr<Optimizer> make_adafactor(const OptimizerConfig& config);
std::unique_ptr<Optimizer> make_sgd(const OptimizerConfig& config);
std::unique_ptr<Optimizer> make_lion(const OptimizerConfig& config);
std::unique_ptr<Optimizer> make_muon(const OptimizerConfig& config);

/// Adds the squares of the gradient sums that this rank counts to `sum` (as in kernels/reduce.hpp). Exact: over all
/// ranks the sum does not depend on the number of ranks and threads.
void sum_gradient_squares(const Tensor& sum, const ParamStore& params, Stream& stream);

}  // namespace llmtrain
