// Lion (Chen et al. 2023), in the order of operations of lion-pytorch and bitsandbytes.

#include "kernels/momentum_update.hpp"
#include "optim/element_optimizer.hpp"

namespace llmtrain {

namespace {

class Lion : public ElementOptimizer {
 public:
  explicit Lion(const OptimizerConfig& config) : config_(config) {}

  StatePlanes states() const override { return fp32_planes({"master", "m"}); }

 private:
  void update_range(const ParamStore::Shard& part, const UnitRange& range) override {
    LionStep step{.beta1 = config_.beta1, .beta2 = config_.beta2};
    set_common(step, range, config_.weight_decay);
    const UpdateTensors tensors{part.master(), part.states[1], part.gradient, part.weights};
    part.on_host ? lion_update_on_host(tensors, step) : lion_update(tensors, step, stream());
  }

  OptimizerConfig config_;
};

}  // namespace

std::unique_ptr<Optimizer> make_lion(const OptimizerConfig& config) { return std::make_unique<Lion>(config); }

}  // namespace llmtrain
