// AdamW (Loshchilov and Hutter 2019), in torch's order of operations.

#include "kernels/adamw.hpp"

#include <tuple>

#include "optim/element_optimizer.hpp"

namespace llmtrain {

namespace {

class AdamW : public ElementOptimizer {
 public:
  explicit AdamW(const OptimizerConfig& config) : config_(config) {}

  StatePlanes states() const override { return master_and_moments(); }

 private:
  void update_range(const ParamStore::Shard& part, const UnitRange& range) override {
    AdamwStep step{.beta1 = config_.beta1, .beta2 = config_.beta2, .epsilon = config_.epsilon, .step = args().step};
    set_common(step, range, config_.weight_decay);
    const auto& [master, m, v] = std::tie(part.states[0], part.states[1], part.states[2]);
    if (part.on_host) {
      adamw_update_on_host(master, m, v, part.gradient, part.weights, step);
    } else {
      adamw_update(master, m, v, part.gradient, part.weights, step, stream());
    }
  }

  OptimizerConfig config_;
};

}  // namespace

std::unique_ptr<Optimizer> make_adamw(const OptimizerConfig& config) { return std::make_unique<AdamW>(config); }

}  // namespace llmtrain
