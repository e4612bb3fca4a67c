// AdamW whose moments have 8 bits, as bitsandbytes' AdamW8bit on GPUs; tensors of fewer than 4,096 elements keep
// moments in fp32, and are updated as by adamw.

#include "kernels/adamw_8bit.hpp"

#include <algorithm>

#include "optim/element_optimizer.hpp"

namespace llmtrain {

namespace {

constexpr int64_t min_8bit_size = 4096;  ///< elements, bitsandbytes' default

bool is_small(const ParamSpec& param, const ParamSlice& slice) { return slice.rows * param.columns < min_8bit_size; }
template <int64_t values>
int64_t if_large(const ParamSpec& param, const ParamSlice& slice) {
  return is_small(param, slice) ? 0 : values;
}
int64_t if_small(const ParamSpec& param, const ParamSlice& slice) {
  return is_small(param, slice) ? chunk_elements : 0;
}

/// A chunk belongs to the tensor in which it begins. In a matrix of several tensors whose sizes are not multiples of a
/// chunk it may thus hold elements of two tensors, which then share a scale.
enum Plane : size_t { master, m, m_scale, v, v_scale, small_m, small_v };
StatePlanes planes() {
  return {{"master"},
          {"m", DType::u8, 0, if_large<chunk_elements>},
          {"m.scale", DType::f32, 0, if_large<1>},
          {"v", DType::u8, 0, if_large<chunk_elements>},
          {"v.scale", DType::f32, 0, if_large<1>},
          {"m.small", DType::f32, 0, if_small},
          {"v.small", DType::f32, 0, if_small}};
}

class Adamw8bit : public ElementOptimizer {
 public:
  explicit Adamw8bit(const OptimizerConfig& config) : config_(config) {}

  StatePlanes states() const override { return planes(); }

 private:
  void update_shard(int unit, const ParamStore::Shard& shard) override {
    for (int64_t begin = shard.begin; begin < shard.end;) {
      const int64_t end = shard.planes->end_of_run(begin, shard.end);
      const ParamStore::Shard part = shard.part(begin, end);
      if (shard.planes->at(small_m, begin).per_chunk > 0) {
        update_small(unit, part);
      } else {
        update_large(unit, part);
      }
      begin = end;
    }
  }

  AdamwStep step_of(const UnitRange& range) const {
    AdamwStep step{.beta1 = config_.beta1, .beta2 = config_.beta2, .epsilon = config_.epsilon, .step = args().step};
    set_common(step, range, config_.weight_decay);
    return step;
  }

  void update_small(int unit, const ParamStore::Shard& part) {
    for (const UnitRange& range : ranges(unit)) {
      const UnitRange common = part.part_of(range);
      if (common.begin >= common.end) continue;
      const auto of = [&](const Tensor& t) {
        return t.empty() ? t : t.rows(common.begin - part.begin, common.end - common.begin);
      };
      const Tensor values = of(part.master()), first = of(part.states[small_m]), second = of(part.states[small_v]);
      const Tensor gradient = of(part.gradient), weights = of(part.weights);
      if (part.on_host) {
        adamw_update_on_host(values, first, second, gradient, weights, step_of(common));
      } else {
        adamw_update(values, first, second, gradient, weights, step_of(common), stream());
      }
    }
  }

  /// Ranges may end inside of a chunk, beside rows that keep their values: such a chunk is updated by itself, and the
  /// first of its ranges that decays decays.
  void update_large(int unit, const ParamStore::Shard& part) {
    for (int64_t begin = part.begin; begin < part.end;) {
      UnitRange range = range_of(unit, begin, begin + 1);
      int64_t end = std::min(part.end, range.end / chunk_elements * chunk_elements);
      if (end <= begin) {
        end = begin + chunk_elements;
        range = range_of(unit, begin, end);
      }
      update_chunks(part.part(begin, end), range);
      begin = end;
    }
  }
  /// The first range in elements [begin, end) that decays, or the first of all.
  UnitRange range_of(int unit, int64_t begin, int64_t end) const {
    const UnitRange* found = nullptr;
    for (const UnitRange& range : ranges(unit)) {
      if (range.begin >= end || range.end <= begin) continue;
      if (found == nullptr || (range.decay && !found->decay)) found = &range;
    }
    return *found;
  }

  void update_chunks(const ParamStore::Shard& part, const UnitRange& range) {
    const auto& s = part.states;
    Adamw8bitTensors tensors{s[master], s[m], s[m_scale], s[v], s[v_scale], part.gradient, part.weights};
    if (range.decay && config_.weight_decay > 0) {
      tensors.decay_begin = std::max(range.begin, part.begin) - part.begin;
      tensors.decay_end = std::min(range.end, part.end) - part.begin;
    }
    const AdamwStep step = step_of(range);
    part.on_host ? adamw_8bit_update_on_host(tensors, step) : adamw_8bit_update(tensors, step, stream());
  }

  OptimizerConfig config_;
};

}  // namespace

std::unique_ptr<Optimizer> make_adamw_8bit(const OptimizerConfig& config) {
  return std::make_unique<Adamw8bit>(config);
}

}  // namespace llmtrain
