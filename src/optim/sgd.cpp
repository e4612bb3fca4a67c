// Stochastic gradient descent with momentum (Sutskever et al. 2013), in torch's order of operations.

#include "optim/momentum_optimizer.hpp"

namespace llmtrain {

std::unique_ptr<Optimizer> make_sgd(const OptimizerConfig& config) {
  const SgdStep step{.momentum = config.momentum, .nesterov = config.nesterov};
  return std::make_unique<MomentumOptimizer<SgdStep>>(step, config.weight_decay, config.momentum != 0);
}

}  // namespace llmtrain
