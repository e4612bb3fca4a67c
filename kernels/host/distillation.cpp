#include "kernels/distillation.hpp"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <numeric>
#include <vector>

#include "core/profile.hpp"
#include "kernels/distillation_terms.hpp"
#include "kernels/host/fast_math.hpp"
#include "kernels/host/parallel.hpp"

namespace llmtrain {

namespace {

using host::Float8;

/// Lower limit of differences of logits: the exponential is below 1e-37, and 0 * -inf does not arise.
constexpr float lowest_difference = -87.0f;
constexpr int64_t lane_block = 2048;  ///< elements that are added in fp32 lanes before these are folded in double

struct FastExp {
  template <class V>
  V operator()(V x) const {
    return host::fast_exp(x);
  }
};
using VectorTerms = DivergenceTerms<Float8, FastExp>;
using ScalarTerms = DivergenceTerms<float, FastExp>;

Float8 scaled_difference(Float8 x, float maximum, float factor) {
  return host::at_least((x - maximum) * factor, lowest_difference);
}

/// term(i, n) as in lane_sum, in blocks that are added in double.
template <class Term>
double sum_of_blocks(int64_t count, const Term& term) {
  double sum = 0;
  for (int64_t begin = 0; begin < count; begin += lane_block) {
    sum +=
        host::lane_sum(std::min(lane_block, count - begin), [&](int64_t i, int64_t n) { return term(begin + i, n); });
  }
  return sum;
}

/// Lanes from n on become 0.
Float8 first_lanes(Float8 v, int64_t n) {
  for (int64_t l = std::max<int64_t>(n, 0); l < 8; ++l) v[l] = 0;
  return v;
}

int64_t index_of_largest(const float* x, int64_t count) { return std::max_element(x, x + count) - x; }

/// log sum exp of factor * x, with the highest x.
struct LogSum {
  float maximum;
  double log;  ///< of the sum over exp(factor (x - maximum))

  LogSum(const float* x, int64_t count, float factor) : maximum(*std::max_element(x, x + count)) {
    log = std::log(sum_of_blocks(count, [&](int64_t i, int64_t n) {
      return first_lanes(host::fast_exp(scaled_difference(host::load_up_to(x + i, n), maximum, factor)), n);
    }));
  }
  double value(float factor) const { return double{maximum} * double{factor} + log; }
};

/// Adds the cross-entropy's part, the slope of the cap and the weight to gradients of a row, and stores them.
struct RowWriter {
  const DistillationRows& rows;
  float weight, lse, of_targets;

  RowWriter(const DistillationRows& all, int64_t r)
      : rows(all), weight(-all.weight[r]), lse(all.lse[r]), of_targets(weight * all.cross_entropy) {}

  Float8 finish(Float8 gradient, Float8 x) const {
    if (of_targets != 0) gradient += of_targets * host::fast_exp(scaled_difference(x, lse, 1));
    if (rows.inverse_cap > 0) gradient *= 1 - (x * rows.inverse_cap) * (x * rows.inverse_cap);
    return gradient;
  }
  /// The same for one token; in double, since p - 1 of a well predicted target is small.
  float finish(double gradient, float x, bool is_target) const {
    if (of_targets != 0) {
      const double p = std::exp(std::max(double{x} - double{lse}, double{lowest_difference}));
      gradient += double{of_targets} * (is_target ? p - 1 : p);
    }
    return static_cast<float>(gradient * double{rows.slope(x)});
  }
};

/// Writes gradient(x, i, n) of the tokens, the rest of the vocabulary, and zeros of padding.
template <class T, class Gradient>
void write_row(T* d, const float* x, const RowWriter& writer, const Gradient& gradient) {
  const DistillationRows& rows = writer.rows;
  for (int64_t i = 0; i < rows.common; i += 8) {
    const int64_t n = std::min<int64_t>(8, rows.common - i);
    const Float8 v = host::load_up_to(x + i, n);
    host::store_up_to(d + i, writer.finish(gradient(v, i, n), v), n);
  }
  for (int64_t i = rows.common; i < rows.vocabulary; ++i) host::store(d + i, writer.finish(0.0, x[i], false));
  for (int64_t i = rows.vocabulary; i < rows.stride; ++i) host::store(d + i, 0.0f);
}

/// All tokens.
template <class T>
void distill_dense(const DistillationRows& rows, const VectorTerms& terms, const ScalarTerms& scalar, T* d, int64_t r) {
  const float* x = rows.logits + r * rows.stride;
  const float* p = rows.teacher + r * rows.teacher_stride;
  const float factor = rows.inverse_temperature;
  const LogSum sum(x, rows.common, factor);
  const auto log_sum = static_cast<float>(sum.log);
  const auto log_q = [&](Float8 v) { return (v - sum.maximum) * factor - log_sum; };
  double value = 0, slopes = 0;
  for (int64_t begin = 0; begin < rows.common; begin += lane_block) {
    host::LaneSum values, all_slopes;
    const int64_t end = std::min(rows.common, begin + lane_block);
    for (int64_t i = begin; i < end; i += 8) {
      const int64_t n = std::min<int64_t>(8, end - i);
      const DivergenceTerm<Float8> term = terms(host::load_up_to(p + i, n), log_q(host::load_up_to(x + i, n)));
      values.add(first_lanes(term.value, n), Float8{});
      all_slopes.add(first_lanes(term.slope, n), Float8{});
    }
    value += values.fold();
    slopes += all_slopes.fold();
  }
  rows.write(r, value, 0, index_of_largest(x, rows.common) == index_of_largest(p, rows.common));
  const RowWriter writer(rows, r);
  const int32_t target = rows.targets[r];
  const float x_target = x[target];
  const float scale = writer.weight * factor, total = static_cast<float>(slopes);
  write_row(d, x, writer, [&](Float8 v, int64_t i, int64_t n) {
    const Float8 own = log_q(v);
    return scale * (terms(host::load_up_to(p + i, n), own).slope - host::fast_exp(own) * total);
  });
  if (rows.cross_entropy == 0) return;
  double gradient = 0;
  if (target < rows.common) {
    const float own = (x_target - sum.maximum) * factor - log_sum;
    gradient = double{scale} * (double{scalar(p[target], own).slope} - std::exp(double{own}) * slopes);
  }
  host::store(d + target, writer.finish(gradient, x_target, true));
}

/// The teacher's top tokens, and all others as one.
template <class T>
void distill_best(const DistillationRows& rows, const ScalarTerms& terms, T* d, int64_t r, std::vector<float>& own) {
  float* x = rows.logits + r * rows.stride;
  const int64_t k = rows.k;
  const int32_t* best = rows.best + r * k;
  const float* p = rows.teacher + r * k;
  const float factor = rows.inverse_temperature;
  const int32_t target = rows.targets[r];
  const float x_target = x[target];
  const bool agrees = index_of_largest(x, rows.common) == best[0];
  own.resize(static_cast<size_t>(k));
  double highest = -FLT_MAX;
  for (int64_t i = 0; i < k; ++i) {
    own[static_cast<size_t>(i)] = x[best[i]];
    highest = std::max(highest, double{x[best[i]]} * double{factor});
    x[best[i]] = -FLT_MAX;
  }
  const bool has_others = k < rows.common;
  const LogSum others(x, rows.common, factor);
  if (has_others) highest = std::max(highest, others.value(factor));
  double sum = has_others ? std::exp(others.value(factor) - highest) : 0;
  for (const float logit : own) sum += std::exp(double{logit} * double{factor} - highest);
  const double log_sum = highest + std::log(sum);

  double mass = 0;  // of the teacher's top tokens
  for (int64_t i = 0; i < k; ++i) mass += std::exp(double{p[i]});
  const auto renormalised = rows.tail ? 0.0f : static_cast<float>(std::log(mass));
  const double log_others = has_others ? others.value(factor) - log_sum : double{no_mass};
  const float p_others = rows.tail && has_others ? rows.rest[r] : no_mass;
  const auto log_q = [&](int64_t i) {
    return static_cast<float>(double{own[static_cast<size_t>(i)]} * double{factor} - log_sum);
  };
  const DivergenceTerm<float> last = terms(p_others, static_cast<float>(log_others));
  double value = double{last.value}, slopes = double{last.slope};
  for (int64_t i = 0; i < k; ++i) {
    const DivergenceTerm<float> term = terms(p[i] - renormalised, log_q(i));
    value += double{term.value};
    slopes += double{term.slope};
  }
  rows.write(r, value, has_others ? std::exp(double{rows.rest[r]}) : 0.0, agrees);

  const RowWriter writer(rows, r);
  const double scale = double{writer.weight} * double{factor};
  const auto of_others =
      has_others ? static_cast<float>(scale * (double{last.slope} - std::exp(log_others) * slopes)) : 0.0f;
  const auto log_of_others = static_cast<float>(others.log);
  write_row(d, x, writer, [&](Float8 v, int64_t, int64_t) {
    return of_others * host::fast_exp(scaled_difference(v, others.maximum, factor) - log_of_others);
  });
  bool wrote_target = false;
  for (int64_t i = 0; i < k; ++i) {
    const double q = std::exp(double{log_q(i)});
    const double gradient = scale * (double{terms(p[i] - renormalised, log_q(i)).slope} - q * slopes);
    host::store(d + best[i], writer.finish(gradient, own[static_cast<size_t>(i)], best[i] == target));
    wrote_target = wrote_target || best[i] == target;
  }
  if (wrote_target || rows.cross_entropy == 0) return;
  double gradient = 0;
  if (target < rows.common) {
    const double difference = (double{x_target} - double{others.maximum}) * double{factor} - others.log;
    gradient = double{of_others} * std::exp(difference);
  }
  host::store(d + target, writer.finish(gradient, x_target, true));
}

}  // namespace

void log_probabilities(const Tensor& logits, int64_t common, float temperature, Stream& /*stream*/) {
  const ProfileSpan span("log_probabilities", [&] { return traffic({&logits, &logits}); });
  LLMTRAIN_CHECK(logits.rank == 2 && logits.dtype == DType::f32 && common > 0 && common <= logits.dim(1),
                 "logits must be fp32 [R, V']");
  const int64_t stride = logits.dim(1);
  float* x0 = logits.as<float>();
  const float factor = 1 / temperature;
  host::parallel_for(logits.dim(0), [=](int64_t r) {
    float* x = x0 + r * stride;
    const LogSum sum(x, common, factor);
    const auto log_sum = static_cast<float>(sum.log);
    for (int64_t i = 0; i < common; i += 8) {
      const int64_t n = std::min<int64_t>(8, common - i);
      host::store_up_to(x + i, (host::load_up_to(x + i, n) - sum.maximum) * factor - log_sum, n);
    }
  });
}

void top_tokens(const TeacherRows& out, const Tensor& logp, int64_t common, Stream& /*stream*/) {
  const ProfileSpan span("top_tokens", [&] { return traffic({&logp}); });
  check_top_tokens(out, logp, common);
  const int64_t stride = logp.dim(1), k = out.tokens.dim(1);
  float* x0 = logp.as<float>();
  auto* best = out.tokens.as<int32_t>();
  float *of_best = out.logp.as<float>(), *rest = out.rest.as<float>();
  host::parallel_for(logp.dim(0), [=](int64_t r) {
    float* x = x0 + r * stride;
    std::vector<int32_t> order(static_cast<size_t>(common));
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + k, order.end(),
                      [x](int32_t a, int32_t b) { return x[a] != x[b] ? x[a] > x[b] : a < b; });
    for (int64_t i = 0; i < k; ++i) {
      const int32_t token = order[static_cast<size_t>(i)];
      best[r * k + i] = token;
      of_best[r * k + i] = x[token];
      x[token] = -FLT_MAX;
    }
    rest[r] = k < common ? static_cast<float>(LogSum(x, common, 1).value(1)) : no_mass;
  });
}

void distillation_backward(const Tensor& dlogits, const Tensor& logits, const Tensor& targets,
                           const TokenStatistics& statistics, const TokenCotangents& cotangents,
                           const TeacherRows& teacher, int64_t common, int64_t vocabulary,
                           const DistillationTerms& terms, float softcap, Stream& /*stream*/) {
  const ProfileSpan span("distillation_backward", [&] { return traffic({&logits, &dlogits}); });
  const DistillationRows rows(dlogits, logits, targets, statistics, cotangents, teacher, common, vocabulary, terms,
                              softcap);
  const VectorTerms vector(terms, FastExp());
  const ScalarTerms scalar(terms, FastExp());
  host::dispatch(dlogits.dtype, [&](auto* tag) {
    auto* d0 = static_cast<decltype(tag)>(dlogits.data);
    host::parallel_for(logits.dim(0), [&, d0](int64_t r) {
      auto* d = d0 + r * rows.stride;
      if (!rows.counts(r)) {
        for (int64_t i = 0; i < rows.stride; ++i) host::store(d + i, 0.0f);
        return rows.write(r, 0, 0, false);
      }
      if (rows.k == 0) return distill_dense(rows, vector, scalar, d, r);
      thread_local std::vector<float> own;
      distill_best(rows, scalar, d, r, own);
    });
  });
}

}  // namespace llmtrain
