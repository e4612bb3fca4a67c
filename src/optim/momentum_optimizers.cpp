// Optimizers whose state is a momentum, or nothing: Lion, and stochastic gradient descent.
#include "kernels/momentum_update.hpp"
#include "optim/element_optimizer.hpp"

namespace llmtrain {
namespace {

template <class Step>
class MomentumOptimizer : public ElementOptimizer {
 public:
  MomentumOptimizer(const Step& step, double weight_decay, bool has_momentum)
      : step_(step), weight_decay_(weight_decay), has_momentum_(has_momentum) {}

  StatePlanes states() const override { return has_momentum_ ? fp32_planes({"master", "m"}) : fp32_planes({"master"}); }

 private:
  void update_range(const ParamStore::Shard& part, const UnitRange& range) override {
    Step step = step_;
    set_common(step, range, weight_decay_);
    const UpdateTensors tensors{part.master(), part.states[1], part.gradient, part.weights};
    part.on_host ? momentum_update_on_host(tensors, step) : momentum_update(tensors, step, stream());
  }

  Step step_;
  double weight_decay_;
  bool has_momentum_;
};

}  // namespace

/// Lion (Chen et al. 2023), in the order of operations of lion-pytorch and bitsandbytes.
std::unique_ptr<Optimizer> make_lion(const OptimizerConfig& config) {
  const LionStep step{.beta1 = config.beta1, .beta2 = config.beta2};
  return std::make_unique<MomentumOptimizer<LionStep>>(step, config.weight_decay, true);
}

/// Stochastic gradient descent with momentum (Sutskever et al. 2013), in torch's order of operations.
std::unique_ptr<Optimizer> make_sgd(const OptimizerConfig& config) {
  const SgdStep step{.momentum = config.momentum, .nesterov = config.nesterov};
  return std::make_unique<MomentumOptimizer<SgdStep>>(step, config.weight_decay, config.momentum != 0);
}

}  // namespace llmtrain
