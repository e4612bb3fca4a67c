#pragma once
// Base of optimizers that update every element, or chunk of elements, by itself.

#include <vector>

#include "optim/optimizer.hpp"

namespace llmtrain {

class ElementOptimizer : public Optimizer {
 public:
  void update(ParamStore& params, const UpdateArgs& args, Stream& stream) final {
    args_ = args;
    params_ = &params;
    stream_ = &stream;
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
  /// Sets what the steps of all kernels have.
  template <class Step>
  void set_common(Step& step, const UnitRange& range, double weight_decay) const {
    step.learning_rate = args_.learning_rate * range.lr_scale;
    step.weight_decay = range.decay ? weight_decay : 0;
    step.gradient_scale = args_.gradient_scale;
    step.decision = args_.decision;
  }

 private:
  // Arguments of the update in progress; they are members so that the callback holds one pointer and needs no
  // allocation.
  UpdateArgs args_;
  ParamStore* params_ = nullptr;
  Stream* stream_ = nullptr;
};

}  // namespace llmtrain
