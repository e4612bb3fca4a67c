#include "layers/layer_check.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "harness/errors.hpp"
#include "harness/harness.hpp"
#include "harness/whole_parameters.hpp"

namespace llmtrain::test {

namespace {

using Values = std::vector<float>;

Values normal_values(size_t count, double scale, unsigned seed) {
  std::mt19937_64 generator(seed);
  std::normal_distribution<double> normal(0, scale);
  Values values(count);
  for (float& v : values) v = static_cast<float>(normal(generator));
  return values;
}

/// One unit of parameters, a batch, and the layer's memory.
class Rig {
 public:
  explicit Rig(const LayerCase& layer) : layer_(layer) {
    for (int length : layer.documents) rows_ += length;
    std::vector<UnitSpec> units;
    UnitBuilder builder(units, "layer");
    layer.declare(builder);
    ParamStoreOptions options;
    params_ = std::make_unique<ParamStore>(units, options);
    params_->plan(arena_);
    arena_.reserve_scratch(layer.plan(arena_, rows_));
    const auto add = [&](Tensor& t, DType dtype, std::initializer_list<int64_t> shape) {
      arena_.add(t, MemoryCategory::data, "test", dtype, shape);
    };
    if (layer.x_columns > 0) {
      add(x_, DType::f32, {rows_, layer.x_columns});
      add(dx_, DType::f32, {rows_, layer.x_columns});
    }
    add(y_, DType::f32, {layer.y_rows, layer.y_columns});
    add(dy_, DType::f32, {layer.y_rows, layer.y_columns});
    for (Tensor* t : {&batch_.ids, &batch_.positions, &batch_.targets, &batch_.sequence_offsets}) {
      add(*t, DType::i32, {rows_});
    }
    add(batch_.sequence_ids, DType::i64, {rows_});
    add(batch_.segments, DType::i32, {static_cast<int64_t>(layer.documents.size()) + 1});
    memory_ = DeviceBuffer(arena_.bytes());
    arena_.commit(memory_.data());
    params_->start(communicator(), stream());
    params_->initialize(1);
    ctx_ = std::make_unique<Context>(Context{*params_, arena_, stream()});
    fill_batch();
  }

  int parameters() const { return static_cast<int>(params_->units()[0].spec.params.size()); }
  const ParamSpec& spec(int p) const { return params_->units()[0].spec.params[static_cast<size_t>(p)]; }
  int64_t rows() const { return rows_; }

  /// values: x, then the parameters. Returns y.
  Values forward(const std::vector<Values>& values) {
    put(x_, values[0]);
    for (int p = 0; p < parameters(); ++p)
      test::set_parameter(*params_, 0, p, values[static_cast<size_t>(p) + 1].data());
    params_->publish_weights();
    begin();
    params_->acquire(0);
    layer_.forward(*ctx_, batch_, y_, x_);
    params_->release(0);
    return get(y_);
  }

  void train_at(uint64_t seed, int64_t step) {
    ctx_->training = true;
    ctx_->seed = seed;
    ctx_->step = step;
  }

  /// Gradients of sum(y dy) after forward(): of x, then of the parameters.
  std::vector<Values> backward(const Values& dy) {
    put(dy_, dy);
    params_->acquire(0);
    layer_.backward(*ctx_, batch_, dx_, dy_, x_);
    params_->release(0);
    params_->reduce(0);
    params_->reducer().finish();
    std::vector<Values> out = {get(dx_)};
    const ParamStore::Shard shard = params_->shard(0, 0);
    for (int p = 0; p < parameters(); ++p) {
      out.push_back(get(shard.gradient.rows(params_->units()[0].layout.offset(p), spec(p).numel())));
    }
    return out;
  }

 private:
  void begin() {
    params_->reducer().begin_step(1);
    params_->reducer().begin_round(0);
    params_->reducer().begin_micro_batch(true, true);
  }

  void fill_batch() {
    std::mt19937_64 generator(5);
    std::vector<int32_t> ids, positions, targets, segments = {0};
    std::vector<int64_t> sequences;
    for (size_t d = 0; d < layer_.documents.size(); ++d) {
      for (int t = 0; t < layer_.documents[d]; ++t) {
        ids.push_back(static_cast<int32_t>(generator() % static_cast<uint64_t>(layer_.vocabulary)));
        const bool trained = generator() % 5 != 0;
        targets.push_back(trained ? static_cast<int32_t>(generator() % static_cast<uint64_t>(layer_.vocabulary))
                                  : ignore_target);
        positions.push_back(t);
        sequences.push_back(static_cast<int64_t>(d));
      }
      segments.push_back(segments.back() + layer_.documents[d]);
    }
    batch_.tokens = rows_;
    batch_.segment_count = static_cast<int64_t>(layer_.documents.size());
    batch_.longest_segment = *std::max_element(layer_.documents.begin(), layer_.documents.end());
    const auto copy = [](const Tensor& to, const auto& from) {
      copy_to_device(to.data, from.data(), to.bytes(), stream());
      stream().synchronize();
    };
    copy(batch_.ids, ids);
    copy(batch_.positions, positions);
    copy(batch_.targets, targets);
    copy(batch_.sequence_offsets, positions);
    copy(batch_.sequence_ids, sequences);
    copy(batch_.segments, segments);
  }

  static void put(const Tensor& to, const Values& from) {
    if (to.empty()) return;
    copy_to_device(to.data, from.data(), to.bytes(), stream());
    stream().synchronize();
  }
  static Values get(const Tensor& from) {
    Values out(from.empty() ? 0 : static_cast<size_t>(from.numel()));
    if (out.empty()) return out;
    copy_to_host(out.data(), from.data, from.bytes(), stream());
    stream().synchronize();
    return out;
  }

  const LayerCase& layer_;
  int64_t rows_ = 0;
  std::unique_ptr<ParamStore> params_;
  Arena arena_;
  Batch batch_;
  Tensor x_, dx_, y_, dy_;
  DeviceBuffer memory_;
  std::unique_ptr<Context> ctx_;
};

double dot(const Values& a, const Values& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += double{a[i]} * double{b[i]};
  return sum;
}

std::vector<Values> random_point(const Rig& rig, const LayerCase& layer) {
  std::vector<Values> point = {normal_values(static_cast<size_t>(rig.rows() * layer.x_columns), 1, 1)};
  for (int p = 0; p < rig.parameters(); ++p) {
    const ParamSpec& spec = rig.spec(p);
    Values values =
        normal_values(static_cast<size_t>(spec.numel()), layer.parameter_scale, 2 + static_cast<unsigned>(p));
    if (std::find(layer.around_one.begin(), layer.around_one.end(), spec.name) != layer.around_one.end()) {
      for (float& v : values) v += 1;
    }
    point.push_back(values);
  }
  return point;
}

}  // namespace

LayerErrors check_gradients(const LayerCase& layer) {
  Rig rig(layer);
  const std::vector<Values> point = random_point(rig, layer);
  const Values dy = normal_values(static_cast<size_t>(layer.y_rows * layer.y_columns), 1, 99);
  rig.forward(point);
  const std::vector<Values> gradients = rig.backward(dy);

  LayerErrors out;
  for (size_t tensor = 0; tensor < point.size(); ++tensor) {
    if (point[tensor].empty()) continue;
    const std::string name = tensor == 0 ? "x" : rig.spec(static_cast<int>(tensor) - 1).name;
    const double size = std::sqrt(dot(gradients[tensor], gradients[tensor]));
    double& error = out.errors[name];
    double& control = out.too_long[name];
    for (unsigned trial = 0; trial < 4; ++trial) {
      const Values direction = normal_values(point[tensor].size(), 1, 1000 + trial);
      const auto objective = [&](double step) {
        std::vector<Values> moved = point;
        for (size_t i = 0; i < direction.size(); ++i) moved[tensor][i] += static_cast<float>(step * direction[i]);
        return dot(rig.forward(moved), dy);
      };
      const double h = 5e-3;
      const double slope = (8 * (objective(h) - objective(-h)) - (objective(2 * h) - objective(-2 * h))) / (12 * h);
      const double ours = dot(gradients[tensor], direction);
      error = larger(error, std::abs(slope - ours) / size);
      control = larger(control, std::abs(slope - 1.01 * ours) / size);
    }
  }
  return out;
}

double LayerErrors::largest() const {
  double largest = 0;
  for (const auto& [name, error] : errors) largest = larger(largest, error);
  return largest;
}

void expect_right_gradients(const LayerCase& layer) {
  const LayerErrors found = check_gradients(layer);
  EXPECT_FALSE(found.errors.empty());
  for (const auto& [name, error] : found.errors) {
    EXPECT_LT(error, gradient_bound) << name;
    EXPECT_GT(found.too_long.at(name), 2 * gradient_bound) << "control: a gradient 1 % too long, " << name;
  }
}

void expect_wrong_gradients(const LayerCase& layer) {
  EXPECT_GT(check_gradients(layer).largest(), 20 * gradient_bound);
}

std::vector<float> output_at(const LayerCase& layer, uint64_t seed, int64_t step) {
  Rig rig(layer);
  rig.train_at(seed, step);
  return rig.forward(random_point(rig, layer));
}

Rope rope_for(int64_t width) {
  Rope rope;
  for (int64_t i = 0; i < width / 2; ++i) {
    rope.frequencies.push_back(std::pow(100.0, -2.0 * static_cast<double>(i) / static_cast<double>(width)));
  }
  return rope;
}

}  // namespace llmtrain::test
