// Lion (Chen et al. 2023), in the order of operations of lion-pytorch and bitsandbytes.

#include "optim/momentum_optimizer.hpp"

namespace llmtrain {

std::unique_ptr<Optimizer> make_lion(const OptimizerConfig& config) {
  const LionStep step{.beta1 = config.beta1, .beta2 = config.beta2};
  return std::make_unique<MomentumOptimizer<LionStep>>(step, config.weight_decay, true);
}

}  // namespace llmtrain
