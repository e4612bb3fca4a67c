#pragma once
// Base of optimizers that update every element, or chunk of elements, by itself.

#include <algorithm>
#include <vector>

#include "optim/optimizer.hpp"

namespace llmtrain {

class ElementOptimizer : public Optimizer {
 public:
  void update(ParamStore& params, const UpdateArgs& args, Stream& stream) final {
    args_ = args;
    params_ = &params;
    stream_ = &stream;
    rates_of_hidden_ = has_rates_of_hidden(params);
    before_pass(params);
    params.update([this](int unit, const ParamStore::Shard& shard) { update_shard(unit, shard); });
  }

 protected:
  virtual void before_pass(ParamStore& /*params*/) {}
  /// Updates elements of one treatment: all of `part`, whose place in the unit is `range`.
  virtual void update_range(const ParamStore::Shard& /*part*/, const UnitRange& /*range*/) {}
  virtual void update_shard(int unit, const ParamStore::Shard& shard) {
    for (const UnitRange& range : ranges(unit)) {
      const UnitRange common = shard.part_of(range);
      if (common.begin < common.end) update_range(shard.part(common.begin, common.end), common);
    }
  }

  const std::vector<UnitRange>& ranges(int unit) const { return params_->units()[unit].layout.ranges(); }
  const UpdateArgs& args() const { return args_; }
  Stream& stream() const { return *stream_; }
  /// Sets what the steps of all kernels have. A hidden matrix with a factor on its rate decays as without it, as in the
  /// package mup of the authors of arXiv:2203.03466; an adapter's matrix decays with the factor, as in PEFT.
  template <class Step>
  void set_common(Step& step, const UnitRange& range, double weight_decay) const {
    step.learning_rate = args_.learning_rate * range.lr_scale;
    step.weight_decay = range.decay ? weight_decay / (rates_of_hidden_ ? range.lr_scale : 1) : 0;
    step.gradient_scale = args_.gradient_scale;
    step.decision = args_.decision;
  }

 private:
  /// True with muP, where no other parameter has a factor.
  static bool has_rates_of_hidden(ParamStore& params) {
    const auto scaled = [](const ParamSpec& param) { return param.hidden && param.lr_scale != 1; };
    for (int unit = 0; unit < params.units().size(); ++unit) {
      if (std::ranges::any_of(params.units()[unit].spec.params, scaled)) return true;
    }
    return false;
  }

  // Arguments of the update in progress; they are members so that the callback holds one pointer and needs no
  // allocation.
  UpdateArgs args_;
  ParamStore* params_ = nullptr;
  Stream* stream_ = nullptr;
  bool rates_of_hidden_ = false;
};

}  // namespace llmtrain
