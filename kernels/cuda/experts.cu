#include <vector>

#include "core/profile.hpp"
#include "kernels/cuda/column_sum.cuh"
#include "kernels/experts.hpp"
#include "kernels/experts_checks.hpp"

namespace llmtrain {

namespace {

using namespace cuda;

struct RouteRow {
  RoutingRule rule;
  float *scores, *log_sum;
  const float* bias;
  int32_t* choices;
  float* weights;
  __device__ void operator()(int64_t n) const {
    float* row = scores + n * rule.experts;
    int32_t* chosen = choices + n * rule.per_token;
    log_sum[n] = routing::score(rule, row);
    routing::choose(rule, row, bias, chosen);
    routing::weigh(rule, row, chosen, weights + n * rule.per_token);
  }
};

/// One integer of the statistics, by a warp.
struct CountRows {
  RoutingRule rule;
  const float *scores, *log_sum;
  const int32_t* choices;
  int64_t* statistics;
  int64_t rows;
  __device__ void operator()(int64_t i) const {
    const int64_t experts = rule.experts;
    int64_t sum = 0;
    if (i < experts) {
      for (int64_t pair = lane(); pair < rows * rule.per_token; pair += warp_lanes) sum += choices[pair] == i ? 1 : 0;
    } else {
      for (int64_t n = lane(); n < rows; n += warp_lanes) {
        const bool squares = i == 2 * experts;
        sum += routing::in_units(squares ? double{log_sum[n]} * log_sum[n] : scores[n * experts + i - experts]);
      }
    }
    sum = warp_sum(sum);
    if (lane() == 0) statistics[i] += sum;
  }
};

struct DifferentiateRow {
  RoutingRule rule;
  float* dlogits;
  const float *scores, *log_sum, *dweights, *balance;
  const int32_t* choices;
  double log_sum_square;
  int64_t counted;
  __device__ void operator()(int64_t n) const {
    const int64_t row = n * rule.experts, pair = n * rule.per_token;
    const bool counts = n < counted;
    routing::differentiate(rule, dlogits + row, scores + row, choices + pair, dweights + pair,
                           counts ? balance : nullptr, counts ? 2 * log_sum_square * log_sum[n] : 0);
  }
};

/// Numbers of pairs; null: those of all rows with k = 1.
struct Order {
  const int32_t* numbers;
  __device__ int64_t pair(int64_t i) const { return numbers != nullptr ? numbers[i] : i; }
};
Order order_of(const Tensor& order) { return {order.empty() ? nullptr : order.as<int32_t>()}; }

template <class T>
struct GatherPair {
  T* to;
  const T* from;
  Order order;
  int64_t k, columns;
  __device__ void operator()(int64_t i) const { to[i] = from[order.pair(i / columns) / k * columns + i % columns]; }
};

struct ScatterPair {
  float* to;
  const float* from;
  Order order;
  int64_t columns;
  __device__ void operator()(int64_t i) const { to[order.pair(i / columns) * columns + i % columns] = from[i]; }
};

struct AddPair {
  float* to;
  const float* from;
  Order order;
  int64_t k, columns;
  __device__ void operator()(int64_t i) const { to[order.pair(i / columns) / k * columns + i % columns] += from[i]; }
};

template <class T>
struct ScalePair {
  T* to;
  const T* from;
  const float* weights;
  Order order;
  int64_t columns;
  __device__ void operator()(int64_t i) const { store(to + i, weights[order.pair(i / columns)] * load(from + i)); }
};

/// A pair, by a warp.
template <class T>
struct ScalePairBackward {
  float* dweights;
  T* dy;
  const T* x;
  const float* weights;
  Order order;
  int64_t columns;
  __device__ void operator()(int64_t i) const {
    const int64_t pair = order.pair(i);
    T* slope = dy + i * columns;
    const T* value = x + i * columns;
    float sum = 0;
    for (int64_t c = lane(); c < columns; c += warp_lanes) sum = fmaf(load(slope + c), load(value + c), sum);
    sum = warp_sum(sum);
    if (lane() == 0) dweights[pair] = sum;
    for (int64_t c = lane(); c < columns; c += warp_lanes) store(slope + c, weights[pair] * load(slope + c));
  }
};

template <class T>
struct AddPairBias {
  float* x;
  const T* bias;
  const float* weights;
  Order order;
  int64_t columns;
  __device__ void operator()(int64_t at) const {
    x[at] = fmaf(weights[order.pair(at / columns)], load(bias + at % columns), x[at]);
  }
};

/// A pair, by a warp.
template <class T>
struct PairBiasBackwardWeight {
  float* dweights;
  const T *dy, *bias;
  Order order;
  int64_t columns;
  __device__ void operator()(int64_t i) const {
    const T* slope = dy + i * columns;
    float sum = 0;
    for (int64_t c = lane(); c < columns; c += warp_lanes) sum = fmaf(load(slope + c), load(bias + c), sum);
    sum = warp_sum(sum);
    if (lane() == 0) dweights[order.pair(i)] += sum;
  }
};

template <class T>
struct WeightedRow {
  const T* dy;
  const float* weights;
  Order order;
  int64_t columns;
  __device__ void operator()(int64_t row, int64_t column, float (&sums)[1]) const {
    sums[0] = fmaf(weights[order.pair(row)], load(dy + row * columns + column), sums[0]);
  }
};

struct Sigmoid {
  float* y;
  const float* x;
  __device__ void operator()(int64_t i) const { y[i] = routing::sigmoid(x[i]); }
};

struct SigmoidBackward {
  float* dx;
  const float *dy, *y;
  __device__ void operator()(int64_t i) const { dx[i] = dy[i] * y[i] * (1 - y[i]); }
};

const float* floats_of(const Tensor& t) { return t.empty() ? nullptr : t.as<float>(); }

}  // namespace

void route(const Routing& r, const RoutingRule& rule, const Tensor& bias, const Tensor& statistics, int64_t counted,
           Stream& stream) {
  const ProfileSpan span("route", [&] { return traffic({&r.scores, &r.scores}); });
  check_routing(r.scores, r.choices, r.weights, rule);
  for_each(r.scores.dim(0), stream,
           RouteRow{rule, r.scores.as<float>(), r.log_sum.as<float>(), floats_of(bias), r.choices.as<int32_t>(),
                    r.weights.as<float>()});
  if (statistics.empty()) return;
  for_each_warp(router_statistics(rule.experts), stream,
                CountRows{rule, r.scores.as<float>(), r.log_sum.as<float>(), r.choices.as<int32_t>(),
                          statistics.as<int64_t>(), counted});
}

void route_backward(const RoutingBackward& a, const RoutingRule& rule, Stream& stream) {
  const ProfileSpan span("route_backward", [&] { return traffic({&a.scores, &a.dlogits}); });
  check_routing(a.scores, a.choices, a.dweights, rule);
  for_each(
      a.scores.dim(0), stream,
      DifferentiateRow{rule, a.dlogits.as<float>(), a.scores.as<float>(), a.log_sum.as<float>(), a.dweights.as<float>(),
                       floats_of(a.balance), a.choices.as<int32_t>(), a.log_sum_square, a.counted});
}

void sort_pairs(const Tensor& order, const Tensor& ends, const Tensor& choices, std::span<const int64_t> block_ends,
                Stream& stream) {
  const ProfileSpan span("sort_pairs", [&] { return traffic({&order, &choices}); });
  const auto count = static_cast<size_t>(choices.numel());
  std::vector<int32_t> chosen(count), sorted(count);
  std::vector<int64_t> borders(static_cast<size_t>(ends.numel()));
  copy_to_host(chosen.data(), choices.data, choices.bytes(), stream);
  stream.synchronize();
  sort_pairs_on_host(sorted, borders, chosen, block_ends);
  copy_to_device(order.data, sorted.data(), choices.bytes(), stream);
  copy_to_device(ends.data, borders.data(), ends.bytes(), stream);
  stream.synchronize();
}

void gather_pairs(const Tensor& y, const Tensor& x, const Tensor& order, int64_t k, Stream& stream) {
  const ProfileSpan span("gather_pairs", [&] { return traffic({&y, &y}); });
  check_pairs(y, order, x.dim(0), k);
  LLMTRAIN_CHECK(y.dtype == x.dtype && y.dim(1) == x.dim(1), "rows of one dtype and width");
  dispatch(y, [&]<class T>(T* to) {
    for_each(y.numel(), stream, GatherPair<T>{to, static_cast<const T*>(x.data), order_of(order), k, y.dim(1)});
  });
}

void scatter_pairs(const Tensor& y, const Tensor& x, const Tensor& order, Stream& stream) {
  const ProfileSpan span("scatter_pairs", [&] { return traffic({&x, &x}); });
  check_pairs(x, order, y.dim(0), 1);
  for_each(x.numel(), stream, ScatterPair{y.as<float>(), x.as<float>(), order_of(order), x.dim(1)});
}

void add_pairs(const Tensor& sum, const Tensor& x, const Tensor& order, int64_t k, Stream& stream) {
  const ProfileSpan span("add_pairs", [&] { return traffic({&x, &x, &x}); });
  check_pairs(x, order, sum.dim(0), k);
  for_each(x.numel(), stream, AddPair{sum.as<float>(), x.as<float>(), order_of(order), k, x.dim(1)});
}

void scale_pairs(const Tensor& y, const Tensor& x, const Tensor& weights, const Tensor& order, Stream& stream) {
  const ProfileSpan span("scale_pairs", [&] { return traffic({&y, &x}); });
  check_pairs(x, order, weights.dim(0), weights.dim(1));
  dispatch(y, [&]<class T>(T* to) {
    for_each(x.numel(), stream,
             ScalePair<T>{to, static_cast<const T*>(x.data), weights.as<float>(), order_of(order), x.dim(1)});
  });
}

void scale_pairs_backward(const Tensor& dweights, const Tensor& dy, const Tensor& x, const Tensor& weights,
                          const Tensor& order, Stream& stream) {
  const ProfileSpan span("scale_pairs_backward", [&] { return traffic({&dy, &dy, &x}); });
  check_pairs(x, order, weights.dim(0), weights.dim(1));
  dispatch(dy, [&]<class T>(T* slopes) {
    for_each_warp(x.dim(0), stream,
                  ScalePairBackward<T>{dweights.as<float>(), slopes, static_cast<const T*>(x.data), weights.as<float>(),
                                       order_of(order), x.dim(1)});
  });
}

void add_pair_biases(const Tensor& x, const Tensor& bias, const Tensor& weights, const Tensor& order, Stream& stream) {
  const ProfileSpan span("add_pair_biases", [&] { return traffic({&x, &x}); });
  check_pairs(x, order, weights.dim(0), weights.dim(1));
  check_pair_bias(x, bias);
  dispatch(bias, [&]<class T>(T* added) {
    for_each(x.numel(), stream, AddPairBias<T>{x.as<float>(), added, weights.as<float>(), order_of(order), x.dim(1)});
  });
}

void pair_bias_backward_weights(const Tensor& dweights, const Tensor& dy, const Tensor& bias, const Tensor& order,
                                Stream& stream) {
  const ProfileSpan span("pair_bias_backward_weights", [&] { return traffic({&dy}); });
  check_pairs(dy, order, dweights.dim(0), dweights.dim(1));
  check_pair_bias(dy, bias);
  LLMTRAIN_CHECK(dy.dtype == bias.dtype, "dy and the bias have one dtype");
  dispatch(dy, [&]<class T>(T* slopes) {
    for_each_warp(dy.dim(0), stream,
                  PairBiasBackwardWeight<T>{dweights.as<float>(), slopes, static_cast<const T*>(bias.data),
                                            order_of(order), dy.dim(1)});
  });
}

void pair_bias_backward(const Tensor& dbias, const Tensor& dy, const Tensor& weights, const Tensor& order,
                        bool accumulate, Stream& stream) {
  const ProfileSpan span("pair_bias_backward", [&] { return traffic({&dy}); });
  check_pairs(dy, order, weights.dim(0), weights.dim(1));
  check_pair_bias(dy, dbias);
  dispatch(dy, [&]<class T>(T* slopes) {
    column_sums<1>(dy.dim(0), dy.dim(1), {dbias.as<float>()}, accumulate, stream,
                   WeightedRow<T>{slopes, weights.as<float>(), order_of(order), dy.dim(1)});
  });
}

void sigmoid(const Tensor& y, const Tensor& x, Stream& stream) {
  for_each(x.numel(), stream, Sigmoid{y.as<float>(), x.as<float>()});
}

void sigmoid_backward(const Tensor& dx, const Tensor& dy, const Tensor& y, Stream& stream) {
  for_each(y.numel(), stream, SigmoidBackward{dx.as<float>(), dy.as<float>(), y.as<float>()});
}

}  // namespace llmtrain
