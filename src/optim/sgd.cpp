// Stochastic gradient descent with momentum (Sutskever et al. 2013), in torch's order of operations.

#include "kernels/momentum_update.hpp"
#include "optim/element_optimizer.hpp"

namespace llmtrain {

namespace {

class Sgd : public ElementOptimizer {
 public:
  explicit Sgd(const OptimizerConfig& config) : config_(config) {}

  StatePlanes states() const override {
    return config_.momentum == 0 ? fp32_planes({"master"}) : fp32_planes({"master", "m"});
  }

 private:
  void update_range(const ParamStore::Shard& part, const UnitRange& range) override {
    SgdStep step{.momentum = config_.momentum, .nesterov = config_.nesterov};
    set_common(step, range, config_.weight_decay);
    const UpdateTensors tensors{part.master(), part.states[1], part.gradient, part.weights};
    part.on_host ? sgd_update_on_host(tensors, step) : sgd_update(tensors, step, stream());
  }

  OptimizerConfig config_;
};

}  // namespace

std::unique_ptr<Optimizer> make_sgd(const OptimizerConfig& config) { return std::make_unique<Sgd>(config); }

}  // namespace llmtrain
