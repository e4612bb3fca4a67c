#include "optim/optimizer.hpp"

#include <algorithm>
#include <array>

#include "core/error.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/reduce.hpp"
#include "kernels/step_decision.hpp"

namespace llmtrain {

namespace {

struct OptimizerEntry {
  OptimizerConfig::Name name;
  std::unique_ptr<Optimizer> (*make)(const OptimizerConfig& config);
};

constexpr std::array optimizers = {
    OptimizerEntry{OptimizerConfig::Name::adamw, make_adamw},
    OptimizerEntry{OptimizerConfig::Name::adamw_8bit, make_adamw_8bit},
    OptimizerEntry{OptimizerConfig::Name::paged_adamw, make_adamw},
    OptimizerEntry{OptimizerConfig::Name::paged_adamw_8bit, make_adamw_8bit},
    OptimizerEntry{OptimizerConfig::Name::sgd, make_sgd},
    OptimizerEntry{OptimizerConfig::Name::lion, make_lion},
    OptimizerEntry{OptimizerConfig::Name::adafactor, make_adafactor},
    OptimizerEntry{OptimizerConfig::Name::muon, make_muon},
};

}  // namespace

std::unique_ptr<Optimizer> make_optimizer(const OptimizerConfig& config) {
  const auto found = std::ranges::find(optimizers, config.name, &OptimizerEntry::name);
  LLMTRAIN_CHECK(found != optimizers.end(), "every optimizer has an entry");
  return found->make(config);
}

std::optional<double> gradient_factor(const UpdateArgs& args, Stream& stream) {
  if (args.decision.empty()) return args.gradient_scale;
  StepDecision decision{};
  copy_to_host(&decision, args.decision.data, args.decision.bytes(), stream);
  stream.synchronize();
  if (decision.applies == 0) return std::nullopt;
  return decision.factor;
}

void round_masters(const ParamStore::Shard& shard, Stream& stream) {
  if (shard.weights.empty()) return;
  if (!shard.on_host) return cast(shard.weights, shard.master(), stream);
  const auto* values = shard.master().as<float>();
  const int64_t count = shard.master().numel();
  if (shard.weights.dtype == DType::f32) {
    std::copy_n(values, count, shard.weights.as<float>());
  } else {
    round_to(shard.weights.dtype, values, count, static_cast<uint16_t*>(shard.weights.data));
  }
}

void sum_gradient_squares(const Tensor& sum, const ParamStore& params, Stream& stream) {
  for (int unit = 0; unit < params.units().size(); ++unit) {
    if (!params.units()[unit].trained()) continue;
    for (size_t segment = 0; segment < params.units()[unit].segments.size(); ++segment) {
      const ParamStore::Shard shard = params.shard(unit, segment);
      const UnitRange owned = params.units().counted(unit, segment);
      if (owned.begin == owned.end) continue;
      sum_of_squares(sum, shard.gradient.rows(owned.begin - shard.begin, owned.end - owned.begin), stream);
    }
  }
}

}  // namespace llmtrain
