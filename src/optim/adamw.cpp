// AdamW (Loshchilov and Hutter 2019), in torch's order of operations.

#include "kernels/adamw.hpp"

#include <tuple>

#include "optim/optimizer.hpp"

namespace llmtrain {

namespace {

class AdamW : public Optimizer {
 public:
  explicit AdamW(const OptimizerConfig& config) : config_(config) {}

  StatePlanes states() const override { return master_and_moments(); }

  void update(ParamStore& params, const UpdateArgs& args, Stream& stream) override {
    learning_rate_ = args.learning_rate;
    step_.beta1 = config_.beta1;
    step_.beta2 = config_.beta2;
    step_.epsilon = config_.epsilon;
    step_.step = args.step;
    step_.gradient_scale = args.gradient_scale;
    step_.decision = args.decision;
    params_ = &params;
    stream_ = &stream;
    params.update([this](int unit, const ParamStore::Shard& shard) {
      for (const UnitRange& range : params_->layout(unit).ranges()) update_range(range, shard);
    });
  }

 private:
  void update_range(const UnitRange& range, const ParamStore::Shard& shard) {
    const UnitRange common = shard.part_of(range);
    if (common.begin >= common.end) return;
    step_.learning_rate = learning_rate_ * range.lr_scale;
    step_.weight_decay = range.decay ? config_.weight_decay : 0;
    const ParamStore::Shard part = shard.part(common.begin, common.end);
    const auto& [master, m, v] = std::tie(part.states[0], part.states[1], part.states[2]);
    if (shard.on_host) {
      adamw_update_on_host(master, m, v, part.gradient, part.weights, step_);
    } else {
      adamw_update(master, m, v, part.gradient, part.weights, step_, *stream_);
    }
  }

  OptimizerConfig config_;
  // Arguments of the update in progress; they are members so that the callback holds one pointer and needs no
  // allocation.
  AdamwStep step_;
  double learning_rate_ = 0;
  ParamStore* params_ = nullptr;
  Stream* stream_ = nullptr;
};

}  // namespace

std::unique_ptr<Optimizer> make_adamw(const OptimizerConfig& config) { return std::make_unique<AdamW>(config); }

}  // namespace llmtrain
