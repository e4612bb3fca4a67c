#include "kernels/experts.hpp"

#include <cmath>

#include "core/profile.hpp"
#include "kernels/experts_checks.hpp"
#include "kernels/host/column_sum.hpp"
#include "kernels/host/element.hpp"
#include "kernels/host/lanes.hpp"
#include "kernels/host/parallel.hpp"

namespace llmtrain {

namespace {

using namespace host;

constexpr int64_t rows_per_task = 16;

/// Calls body(i, number of the pair) for the pairs of an order.
template <class Body>
void each_pair(const Tensor& order, int64_t count, const Body& body) {
  const int32_t* numbers = order.empty() ? nullptr : order.as<int32_t>();
  parallel_blocks(count, rows_per_task, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) body(i, numbers != nullptr ? numbers[i] : i);
  });
}

/// Adds counted rows to the statistics of a layer.
void count_rows(const Routing& r, const RoutingRule& rule, int64_t* statistics, int64_t rows) {
  const float *scores = r.scores.as<float>(), *log_sums = r.log_sum.as<float>();
  const int32_t* choices = r.choices.as<int32_t>();
  for (int64_t i = 0; i < rows * rule.per_token; ++i) ++statistics[choices[i]];
  int64_t* sums = statistics + rule.experts;
  for (int64_t n = 0; n < rows; ++n) {
    for (int64_t e = 0; e < rule.experts; ++e) {
      sums[e] += routing::in_units(scores[n * rule.experts + e]);
    }
    sums[rule.experts] += routing::in_units(double{log_sums[n]} * log_sums[n]);
  }
}

}  // namespace

void route(const Routing& r, const RoutingRule& rule, const Tensor& bias, const Tensor& statistics, int64_t counted,
           Stream& /*stream*/) {
  const ProfileSpan span("route", [&] { return traffic({&r.scores, &r.scores}); });
  check_routing(r.scores, r.choices, r.weights, rule);
  float *scores = r.scores.as<float>(), *log_sums = r.log_sum.as<float>(), *weights = r.weights.as<float>();
  int32_t* choices = r.choices.as<int32_t>();
  const float* added = bias.empty() ? nullptr : bias.as<float>();
  parallel_blocks(r.scores.dim(0), rows_per_task, [=](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      float* row = scores + n * rule.experts;
      log_sums[n] = routing::score(rule, row);
      routing::choose(rule, row, added, choices + n * rule.per_token);
      routing::weigh(rule, row, choices + n * rule.per_token, weights + n * rule.per_token);
    }
  });
  if (!statistics.empty()) count_rows(r, rule, statistics.as<int64_t>(), counted);
}

void route_backward(const RoutingBackward& a, const RoutingRule& rule, Stream& /*stream*/) {
  const ProfileSpan span("route_backward", [&] { return traffic({&a.scores, &a.dlogits}); });
  check_routing(a.scores, a.choices, a.dweights, rule);
  float* dlogits = a.dlogits.as<float>();
  const float *scores = a.scores.as<float>(), *log_sums = a.log_sum.as<float>(), *dweights = a.dweights.as<float>();
  const int32_t* choices = a.choices.as<int32_t>();
  const float* balance = a.balance.empty() ? nullptr : a.balance.as<float>();
  parallel_blocks(a.scores.dim(0), rows_per_task, [=](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      const int64_t row = n * rule.experts, pair = n * rule.per_token;
      const bool counts = n < a.counted;
      routing::differentiate(rule, dlogits + row, scores + row, choices + pair, dweights + pair,
                             counts ? balance : nullptr, counts ? 2 * a.log_sum_square * log_sums[n] : 0);
    }
  });
}

void sort_pairs(const Tensor& order, const Tensor& ends, const Tensor& choices, std::span<const int64_t> block_ends,
                Stream& /*stream*/) {
  const ProfileSpan span("sort_pairs", [&] { return traffic({&order, &choices}); });
  const auto count = static_cast<size_t>(choices.numel());
  sort_pairs_on_host({order.as<int32_t>(), count}, {ends.as<int64_t>(), static_cast<size_t>(ends.numel())},
                     {choices.as<int32_t>(), count}, block_ends);
}

void gather_pairs(const Tensor& y, const Tensor& x, const Tensor& order, int64_t k, Stream& /*stream*/) {
  const ProfileSpan span("gather_pairs", [&] { return traffic({&y, &y}); });
  check_pairs(y, order, x.dim(0), k);
  LLMTRAIN_CHECK(y.dtype == x.dtype && y.dim(1) == x.dim(1), "rows of one dtype and width");
  dispatch(y.dtype, [&](auto* tag) {
    auto* to = static_cast<decltype(tag)>(y.data);
    const auto* from = static_cast<decltype(tag)>(x.data);
    const int64_t columns = y.dim(1);
    each_pair(order, y.dim(0),
              [=](int64_t i, int64_t pair) { std::copy_n(from + pair / k * columns, columns, to + i * columns); });
  });
}

void scatter_pairs(const Tensor& y, const Tensor& x, const Tensor& order, Stream& /*stream*/) {
  const ProfileSpan span("scatter_pairs", [&] { return traffic({&x, &x}); });
  check_pairs(x, order, y.dim(0), 1);
  const int64_t columns = x.dim(1);
  float* to = y.as<float>();
  const float* from = x.as<float>();
  each_pair(order, x.dim(0),
            [=](int64_t i, int64_t pair) { std::copy_n(from + i * columns, columns, to + pair * columns); });
}

void add_pairs(const Tensor& sum, const Tensor& x, const Tensor& order, int64_t k, Stream& /*stream*/) {
  const ProfileSpan span("add_pairs", [&] { return traffic({&x, &x, &x}); });
  check_pairs(x, order, sum.dim(0), k);
  const int64_t columns = x.dim(1);
  float* to = sum.as<float>();
  const float* from = x.as<float>();
  each_pair(order, x.dim(0), [=](int64_t i, int64_t pair) {
    float* row = to + pair / k * columns;
    const float* term = from + i * columns;
    for (int64_t c = 0; c < columns; ++c) row[c] += term[c];
  });
}

void scale_pairs(const Tensor& y, const Tensor& x, const Tensor& weights, const Tensor& order, Stream& /*stream*/) {
  const ProfileSpan span("scale_pairs", [&] { return traffic({&y, &x}); });
  check_pairs(x, order, weights.dim(0), weights.dim(1));
  const float* factors = weights.as<float>();
  dispatch(x.dtype, [&](auto* tag) {
    auto* to = static_cast<decltype(tag)>(y.data);
    const auto* from = static_cast<decltype(tag)>(x.data);
    const int64_t columns = x.dim(1);
    each_pair(order, x.dim(0), [=](int64_t i, int64_t pair) {
      const float factor = factors[pair];
      for (int64_t c = i * columns; c < (i + 1) * columns; ++c) store(to + c, factor * load(from + c));
    });
  });
}

void scale_pairs_backward(const Tensor& dweights, const Tensor& dy, const Tensor& x, const Tensor& weights,
                          const Tensor& order, Stream& /*stream*/) {
  const ProfileSpan span("scale_pairs_backward", [&] { return traffic({&dy, &dy, &x}); });
  check_pairs(x, order, weights.dim(0), weights.dim(1));
  const float* factors = weights.as<float>();
  float* dfactors = dweights.as<float>();
  dispatch(x.dtype, [&](auto* tag) {
    auto* slopes = static_cast<decltype(tag)>(dy.data);
    const auto* values = static_cast<decltype(tag)>(x.data);
    const int64_t columns = x.dim(1);
    each_pair(order, x.dim(0), [=](int64_t i, int64_t pair) {
      auto* slope = slopes + i * columns;
      const auto* value = values + i * columns;
      dfactors[pair] = static_cast<float>(
          lane_sum(columns, [&](int64_t c, int64_t n) { return load_up_to(slope + c, n) * load_up_to(value + c, n); }));
      const float factor = factors[pair];
      for (int64_t c = 0; c < columns; ++c) store(slope + c, factor * load(slope + c));
    });
  });
}

void add_pair_biases(const Tensor& x, const Tensor& bias, const Tensor& weights, const Tensor& order,
                     Stream& /*stream*/) {
  const ProfileSpan span("add_pair_biases", [&] { return traffic({&x, &x}); });
  check_pairs(x, order, weights.dim(0), weights.dim(1));
  check_pair_bias(x, bias);
  const float* factors = weights.as<float>();
  float* rows = x.as<float>();
  const int64_t columns = x.dim(1);
  dispatch(bias.dtype, [&](auto* tag) {
    const auto* added = static_cast<decltype(tag)>(bias.data);
    each_pair(order, x.dim(0), [=](int64_t i, int64_t pair) {
      float* row = rows + i * columns;
      for (int64_t c = 0; c < columns; ++c) row[c] += factors[pair] * load(added + c);
    });
  });
}

void pair_bias_backward_weights(const Tensor& dweights, const Tensor& dy, const Tensor& bias, const Tensor& order,
                                Stream& /*stream*/) {
  const ProfileSpan span("pair_bias_backward_weights", [&] { return traffic({&dy}); });
  check_pairs(dy, order, dweights.dim(0), dweights.dim(1));
  check_pair_bias(dy, bias);
  LLMTRAIN_CHECK(dy.dtype == bias.dtype, "dy and the bias have one dtype");
  float* dfactors = dweights.as<float>();
  const int64_t columns = dy.dim(1);
  dispatch(dy.dtype, [&](auto* tag) {
    const auto *slopes = static_cast<decltype(tag)>(dy.data), *added = static_cast<decltype(tag)>(bias.data);
    each_pair(order, dy.dim(0), [=](int64_t i, int64_t pair) {
      const auto* slope = slopes + i * columns;
      dfactors[pair] += static_cast<float>(
          lane_sum(columns, [&](int64_t c, int64_t n) { return load_up_to(slope + c, n) * load_up_to(added + c, n); }));
    });
  });
}

void pair_bias_backward(const Tensor& dbias, const Tensor& dy, const Tensor& weights, const Tensor& order,
                        bool accumulate, Stream& /*stream*/) {
  const ProfileSpan span("pair_bias_backward", [&] { return traffic({&dy}); });
  check_pairs(dy, order, weights.dim(0), weights.dim(1));
  check_pair_bias(dy, dbias);
  const float* factors = weights.as<float>();
  const int32_t* numbers = order.empty() ? nullptr : order.as<int32_t>();
  dispatch(dy.dtype, [&](auto* tag) {
    const auto* slopes = static_cast<decltype(tag)>(dy.data);
    const int64_t columns = dy.dim(1);
    const auto add_rows = [=](float* sums, int64_t begin, int64_t end, int64_t first, int64_t last) {
      for (int64_t r = begin; r < end; ++r) {
        const float factor = factors[numbers != nullptr ? numbers[r] : r];
        for (int64_t c = first; c < last; ++c) sums[c] += factor * load(slopes + r * columns + c);
      }
    };
    column_sums({dy.dim(0), columns, 1, false}, add_rows, {dbias.as<float>()}, accumulate);
  });
}

void sigmoid(const Tensor& y, const Tensor& x, Stream& /*stream*/) {
  float* out = y.as<float>();
  const float* in = x.as<float>();
  for (int64_t i = 0; i < x.numel(); ++i) out[i] = routing::sigmoid(in[i]);
}

void sigmoid_backward(const Tensor& dx, const Tensor& dy, const Tensor& y, Stream& /*stream*/) {
  float* out = dx.as<float>();
  const float *slope = dy.as<float>(), *value = y.as<float>();
  for (int64_t i = 0; i < y.numel(); ++i) out[i] = slope[i] * value[i] * (1 - value[i]);
}

}  // namespace llmtrain
