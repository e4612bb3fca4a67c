// Linear layers with adapters, compared with a plain implementation of the formulas in double. DoRA's norm is a
// constant in the gradient, so that y is linear in every single tensor and a difference is the exact slope.

#include "layers/adapter.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <numeric>
#include <random>

#include "core/philox.hpp"
#include "harness/harness.hpp"
#include "harness/whole_parameters.hpp"
#include "kernels/elementwise.hpp"
#include "layers/linear.hpp"

namespace llmtrain::test {
namespace {

using Values = std::vector<float>;
using Reals = std::vector<double>;

constexpr int64_t rows = 19, in = 10, out = 16;
constexpr uint64_t seed = 5;
constexpr int64_t step = 3;
const std::vector<LinearPart> parts = {{"q", 7}, {"k", 5}, {"v", 4}};

struct Kind {
  bool bias = false, dora = false, dropout = false;
  bool whole = false;  ///< one matrix, which one adapter covers
  bool saved = false;  ///< k, which has no adapter, is trained whole

  std::vector<LinearPart> matrices() const { return whole ? std::vector<LinearPart>{{"q", out}} : parts; }
  AdapterRule rule() const {
    return [*this](const std::string& module) -> std::optional<AdapterShape> {
      if (module == "k") return std::nullopt;
      const bool first = module == "q";
      return AdapterShape{first ? 3 : 2, first ? 0.75 : 1.5, dropout ? 0.25 : 0, dora};
    };
  }
};

std::ostream& operator<<(std::ostream& stream, const Kind& kind) {
  return stream << (kind.bias ? "bias " : "") << (kind.dora ? "dora " : "") << (kind.dropout ? "dropout " : "")
                << (kind.whole ? "whole" : "") << (kind.saved ? "saved" : "");
}

/// A layer with its parameters in two units, and a batch of two sequences.
class Rig {
 public:
  Rig(const Kind& kind, DType compute) : compute_(compute) {
    std::vector<UnitSpec> units;
    UnitBuilder builder(units, "layer", [saved = kind.saved](const std::string& name) {
      return name.ends_with("bias") || (saved && name == "k.weight");
    });
    layer_ = Linear::declare(builder, kind.matrices(), in, kind.bias, 0.02, kind.rule());
    ParamStoreOptions options;
    options.compute = compute;
    options.micro_batches_per_group = 2;
    params_ = std::make_unique<ParamStore>(units, options);
    params_->plan(arena_);
    arena_.reserve_scratch(layer_.scratch_bytes(compute, compute, rows));
    arena_.reserve_workspace(layer_.workspace_bytes(compute, compute, rows, true));
    for (auto [tensor, columns] : {std::pair(&x_, in), {&dx_, in}, {&y_, out}, {&dy_, out}}) {
      arena_.add(*tensor, MemoryCategory::data, "test", compute, {rows, columns});
    }
    arena_.add(wide_, MemoryCategory::data, "test", DType::f32, {rows, std::max(in, out)});
    arena_.add(batch_.sequence_offsets, MemoryCategory::data, "test", DType::i32, {rows});
    arena_.add(batch_.sequence_ids, MemoryCategory::data, "test", DType::i64, {rows});
    memory_ = DeviceBuffer(arena_.bytes());
    arena_.commit(memory_.data());
    params_->start(communicator(), stream());
    params_->initialize(1);
    ctx_ = std::make_unique<Context>(Context{*params_, arena_, stream(), seed, step, true});
    batch_.tokens = rows;
    copy_to_device(batch_.sequence_ids.data, sequences().data(), batch_.sequence_ids.bytes(), stream());
    copy_to_device(batch_.sequence_offsets.data, offsets().data(), batch_.sequence_offsets.bytes(), stream());
    stream().synchronize();
  }

  static std::vector<int64_t> sequences() {
    std::vector<int64_t> ids(rows, 4);
    std::fill(ids.begin() + 8, ids.end(), 9);
    return ids;
  }
  static std::vector<int32_t> offsets() {
    std::vector<int32_t> offsets(rows);
    std::iota(offsets.begin(), offsets.begin() + 8, 0);
    std::iota(offsets.begin() + 8, offsets.end(), 0);
    return offsets;
  }

  Context& ctx() { return *ctx_; }
  ParamStore& params() { return *params_; }

  /// Calls f(name, unit, param, spec) for each slice, which is a parameter by itself or rows of A.
  template <class F>
  void each(const F& f) const {
    for (int unit = 0; unit < params_->units().size(); ++unit) {
      for (size_t p = 0; p < params_->units()[unit].spec.params.size(); ++p) {
        f(unit, static_cast<int>(p), params_->units()[unit].spec.params[p]);
      }
    }
  }

  void set(const std::map<std::string, Values>& values) {
    each([&](int unit, int param, const ParamSpec& spec) {
      Values whole;
      for (const ParamSlice& s : spec.slices)
        whole.insert(whole.end(), values.at(s.name).begin(), values.at(s.name).end());
      ASSERT_EQ(static_cast<int64_t>(whole.size()), spec.numel()) << spec.name;
      set_parameter(*params_, unit, param, whole.data());
    });
    params_->publish_weights();
  }

  Values forward(const Values& x) {
    put(x_, x);
    hold([&] { layer_.forward(*ctx_, batch_, y_, x_); });
    return get(y_);
  }

  /// Gradients of sum(dy y) of two equal micro-batches, by slice; of x, that of one.
  std::map<std::string, Values> backward(const Values& dy) {
    put(dy_, dy);
    params_->reducer().begin_step(1);
    params_->reducer().begin_round(0);
    params_->reducer().begin_micro_batch(true, false);
    hold([&] { layer_.backward(*ctx_, batch_, dx_, dy_, x_); });
    params_->reducer().begin_micro_batch(false, true);
    hold([&] { layer_.backward(*ctx_, batch_, dx_, dy_, x_); });
    std::map<std::string, Values> gradients = {{"x", get(dx_)}};
    for (int unit = 0; unit < params_->units().size(); ++unit) params_->reduce(unit);
    params_->reducer().finish();
    each([&](int unit, int param, const ParamSpec& spec) {
      if (!params_->units()[unit].trained()) return;
      const Tensor whole =
          params_->shard(unit, 0).gradient.rows(params_->units()[unit].layout.offset(param), spec.numel());
      Values values(static_cast<size_t>(spec.numel()));
      copy_to_host(values.data(), whole.data, whole.bytes(), stream());
      stream().synchronize();
      for (const ParamSlice& s : spec.slices) {
        const auto first = values.begin() + s.first_row * spec.columns;
        gradients[s.name].assign(first, first + s.rows * spec.columns);
      }
    });
    return gradients;
  }

  void put(const Tensor& to, const Values& from) {
    const Tensor wide = Tensor(wide_.data, DType::f32, {to.dim(0), to.dim(1)});
    copy_to_device(wide.data, from.data(), wide.bytes(), stream());
    cast(to, wide, stream());
    stream().synchronize();
  }
  Values get(const Tensor& from) {
    const Tensor wide = Tensor(wide_.data, DType::f32, {from.dim(0), from.dim(1)});
    cast(wide, from, stream());
    Values values(static_cast<size_t>(from.numel()));
    copy_to_host(values.data(), wide.data, wide.bytes(), stream());
    stream().synchronize();
    return values;
  }

 private:
  template <class F>
  void hold(const F& f) {
    for (int unit = 0; unit < params_->units().size(); ++unit) params_->acquire(unit);
    f();
    for (int unit = 0; unit < params_->units().size(); ++unit) params_->release(unit);
  }

  DType compute_;
  Linear layer_;
  std::unique_ptr<ParamStore> params_;
  Arena arena_;
  Batch batch_;
  Tensor x_, dx_, y_, dy_, wide_;
  DeviceBuffer memory_;
  std::unique_ptr<Context> ctx_;
};

Values normal_values(size_t count, double scale, unsigned from) {
  std::mt19937_64 generator(from);
  std::normal_distribution<double> normal(0, scale);
  Values values(count);
  for (float& v : values) v = static_cast<float>(normal(generator));
  return values;
}

/// Random values of x and all slices.
std::map<std::string, Values> random_point(const Rig& rig) {
  std::map<std::string, Values> point = {{"x", normal_values(rows * in, 1, 1)}};
  rig.each([&](int, int, const ParamSpec& spec) {
    for (const ParamSlice& s : spec.slices) {
      Values values =
          normal_values(static_cast<size_t>(s.rows * spec.columns), 0.4, static_cast<unsigned>(point.size()) + 7);
      if (s.name.ends_with("magnitude_vector")) {
        for (float& v : values) v += 2;
      }
      point[s.name] = values;
    }
  });
  return point;
}

/// The formulas of PEFT, in double; norms as constants, computed when they are empty.
class Reference {
 public:
  Reference(const Kind& kind, double scale_of_all = 1) : kind_(kind), scale_(scale_of_all) {}

  /// y, with an element moved.
  Reals operator()(const std::map<std::string, Values>& point, const std::string& moved = "", size_t element = 0,
                   double by = 0) {
    const auto tensor = [&](const std::string& name) {
      const auto found = point.find(name);
      Reals values;
      if (found != point.end()) values.assign(found->second.begin(), found->second.end());
      if (name == moved) values[element] += by;
      return values;
    };
    const Reals x = tensor("x");
    Reals y(rows * out);
    int64_t first = 0;
    for (const LinearPart& part : kind_.matrices()) {
      const Reals w = tensor(part.name + ".weight"), bias = tensor(part.name + ".bias"), dropped = drop(part.name, x);
      const Reals delta = product(tensor(lora_b_name(part.name)), tensor(lora_a_name(part.name)), part.name);
      const Reals magnitude = tensor(lora_magnitude_name(part.name));
      for (int64_t o = 0; o < part.rows; ++o) {
        const Reals d = delta.empty() ? Reals(in) : Reals(delta.begin() + o * in, delta.begin() + (o + 1) * in);
        if (norms_.size() < out) norms_.push_back(norm(&w[static_cast<size_t>(o * in)], d));
        const auto row = static_cast<size_t>(o), column = static_cast<size_t>(first + o);
        const double g = magnitude.empty() ? 1 : magnitude[row] / norms_[column];
        for (size_t n = 0; n < rows; ++n) {
          double sum = bias.empty() ? 0 : bias[row];
          for (size_t i = 0; i < in; ++i) {
            const double wx = w[row * in + i];
            sum += x[n * in + i] * wx + dropped[n * in + i] * ((g - 1) * wx + g * d[i]);
          }
          y[n * out + column] = sum;
        }
      }
      first += part.rows;
    }
    return y;
  }

 private:
  static double norm(const double* w, const Reals& delta) {
    double sum = 0;
    for (size_t i = 0; i < in; ++i) sum += (w[i] + delta[i]) * (w[i] + delta[i]);
    return std::sqrt(sum);
  }
  /// scale B A
  Reals product(const Reals& b, const Reals& a, const std::string& module) const {
    const size_t rank = a.size() / in;
    Reals delta(rank == 0 ? 0 : b.size() / rank * in);
    const double scale = rank == 0 ? 0 : kind_.rule()(module)->scale * scale_;
    for (size_t i = 0; i < delta.size(); ++i) {
      for (size_t k = 0; k < rank; ++k) delta[i] += scale * b[i / in * rank + k] * a[k * in + i % in];
    }
    return delta;
  }
  Reals drop(const std::string& module, Reals x) const {
    if (!kind_.dropout) return x;
    const uint64_t key = random_key(seed, RandomPurpose::adapter_dropout, step, hash_of_name(module));
    const auto sequences = Rig::sequences();
    const auto offsets = Rig::offsets();
    for (size_t i = 0; i < x.size(); ++i) {
      x[i] *= Dropout{0.25f, key}.scale(static_cast<uint64_t>(sequences[i / in]),
                                        static_cast<uint64_t>(offsets[i / in]) * in + i % in);
    }
    return x;
  }

  const Kind& kind_;
  double scale_;
  Reals norms_;
};

/// |a - b| / |b|
double distance(const Values& a, const Reals& b) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    size += b[i] * b[i];
  }
  return std::sqrt(difference / size);
}

class AdaptedLinear : public ::testing::TestWithParam<Kind> {};

TEST_P(AdaptedLinear, OutputAndGradientsAreThoseOfTheFormulas) {
  const Kind kind = GetParam();
  Rig rig(kind, DType::f32);
  std::map<std::string, Values> point = random_point(rig);
  rig.set(point);
  Reference reference(kind), wrong_scale(kind, 1.01);
  const Values y = rig.forward(point.at("x"));
  EXPECT_LT(distance(y, reference(point)), 1e-6);
  EXPECT_GT(distance(y, wrong_scale(point)), 1e-4) << "control: a scale that is 1 % larger";
  const Values dy = normal_values(rows * out, 1, 99);
  const auto gradients = rig.backward(dy);
  for (const auto& [name, gradient] : gradients) {
    if (name == "q.weight" || name == "v.weight") {
      EXPECT_THAT(gradient, ::testing::Each(0.0f)) << name << " keeps its values";
      continue;
    }
    Reals slopes;
    for (size_t i = 0; i < gradient.size(); ++i) {
      const Reals plus = reference(point, name, i, 1), minus = reference(point, name, i, -1);
      double slope = 0;
      for (size_t j = 0; j < plus.size(); ++j) slope += dy[j] * (plus[j] - minus[j]) / 2;
      slopes.push_back(name == "x" ? slope : 2 * slope);
    }
    EXPECT_LT(distance(gradient, slopes), 2e-6) << name;
  }
  // q and v have A and B, and with magnitudes a third; biases of all parts are trained here.
  const size_t adapters = kind.whole ? 1 : 2;
  EXPECT_EQ(gradients.size(), 1 + adapters * (kind.dora ? 3 : 2) + (kind.bias ? kind.matrices().size() : 0) +
                                  (kind.saved ? parts.size() : 0));
}

// B = 0, and magnitudes equal to the norms, leave every bit of the base model.
TEST_P(AdaptedLinear, StartsAsTheBase) {
  for (const DType compute : {DType::f32, DType::bf16, DType::f16}) {
    Rig rig(GetParam(), compute);
    rig.ctx().training = !GetParam().dora;  // its dropout changes the order of sums
    std::map<std::string, Values> point = random_point(rig);
    for (auto& [name, values] : point) {
      if (name.find("lora_B") != name.npos) std::fill(values.begin(), values.end(), 0.0f);
    }
    rig.set(point);
    rig.ctx().adapters = false;
    const Values base = rig.forward(point.at("x"));
    rig.ctx().adapters = true;
    if (GetParam().dora) {
      EXPECT_NE(rig.forward(point.at("x")), base) << "control: other magnitudes";
      for (auto& [module, rows_of] : {std::pair<std::string, int64_t>("q", GetParam().whole ? out : 7), {"v", 4}}) {
        if (!point.contains(lora_magnitude_name(module))) continue;
        Values& magnitude = point.at(lora_magnitude_name(module));
        for (int64_t o = 0; o < rows_of; ++o) {
          double sum = 0;
          for (int64_t i = 0; i < in; ++i) {
            const float w = rounded_to(compute, point.at(module + ".weight")[static_cast<size_t>(o * in + i)]);
            sum += double{w} * double{w};
          }
          magnitude[static_cast<size_t>(o)] = static_cast<float>(std::sqrt(sum));
        }
      }
      rig.set(point);
    }
    EXPECT_EQ(rig.forward(point.at("x")), base);
    rig.set(random_point(rig));
    EXPECT_NE(rig.forward(point.at("x")), base) << "control: another B";
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, AdaptedLinear,
                         ::testing::Values(Kind{}, Kind{.bias = true}, Kind{.dropout = true},
                                           Kind{.bias = true, .dora = true}, Kind{.dora = true},
                                           Kind{.bias = true, .dora = true, .dropout = true},
                                           Kind{.dora = true, .dropout = true, .whole = true},
                                           Kind{.dropout = true, .whole = true}, Kind{.dora = true, .saved = true},
                                           Kind{.dropout = true, .saved = true},
                                           Kind{.dora = true, .dropout = true, .saved = true}));

TEST(AdaptedLinear, MasksAndInitialNumbersFollowTheNamesOfModules) {
  std::vector<UnitSpec> units;
  UnitBuilder unit(units, "layer", [](const std::string&) { return false; });
  const Linear layer = Linear::declare(unit, {{"m.q", 7, true}, {"m.v", 4, true}}, in, false, 0.02,
                                       [](const std::string&) { return AdapterShape{.learning_rate_ratio = 16}; });
  EXPECT_NE(layer.adapters[0].dropout_name, layer.adapters[1].dropout_name);
  ASSERT_EQ(units.size(), 2u);
  EXPECT_EQ(units[1].name, "layer.trained");
  const std::vector<ParamSpec>& params = units[1].params;
  ASSERT_EQ(params.size(), 3u);
  ASSERT_EQ(params[0].slices.size(), 2u);
  EXPECT_EQ(params[0].slices[1].name, "base_model.model.m.v.lora_A.weight");
  EXPECT_FALSE(params[0].slices[1].transposed) << "PEFT's A is [r, in] for GPT-2's Conv1D too";
  EXPECT_EQ(params[0].init.kind, Initializer::Kind::uniform);
  EXPECT_NEAR(params[0].init.width, 1 / std::sqrt(10.0), 1e-15);
  EXPECT_EQ(params[0].lr_scale, 1);
  EXPECT_EQ(params[2].name, "base_model.model.m.v.lora_B.weight");
  EXPECT_EQ(params[2].lr_scale, 16);
}

}  // namespace
}  // namespace llmtrain::test
