#include <cfloat>
#include <cmath>

#include "core/profile.hpp"
#include "kernels/cuda/row_reduction.cuh"
#include "kernels/distillation_terms.hpp"

namespace llmtrain {

namespace {

using namespace cuda;

/// Lower limit of differences of logits: the exponential is below 1e-37, and 0 * -inf does not arise.
constexpr float lowest_difference = -87.0f;

struct DeviceExp {
  LLMTRAIN_HOST_DEVICE float operator()(float x) const { return expf(x); }
};
using Terms = DivergenceTerms<float, DeviceExp>;

__device__ float scaled_difference(float x, float maximum, float factor) {
  const float difference = (x - maximum) * factor;
  return difference < lowest_difference ? lowest_difference : difference;
}

/// The highest of a row, with its index; the same in all threads.
__device__ uint64_t best_of_row(const float* x, int64_t count) {
  float best = -INFINITY;
  int index = 0;  // for a row of NaN
  for (int64_t i = threadIdx.x; i < count; i += row_threads) {
    if (x[i] > best) {
      best = x[i];
      index = static_cast<int>(i);
    }
  }
  return row_maximum(ordered_key(best, index));
}

/// The logarithm of the sum of exp(factor (x - maximum)); the same in all threads.
__device__ double log_sum_of_row(const float* x, int64_t count, float maximum, float factor) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < count; i += row_threads) {
    sum += double{expf(scaled_difference(x[i], maximum, factor))};
  }
  return log(row_sum(sum));
}

struct LogProbabilitiesOfRow {
  static constexpr int threads = row_threads;
  float* logits;
  int64_t common, stride;
  float factor;

  __device__ void operator()() const {
    float* x = logits + static_cast<int64_t>(blockIdx.x) * stride;
    const float maximum = x[index_of(best_of_row(x, common))];
    const auto log_sum = static_cast<float>(log_sum_of_row(x, common, maximum, factor));
    for (int64_t i = threadIdx.x; i < common; i += threads) x[i] = (x[i] - maximum) * factor - log_sum;
  }
};

/// One token after the other.
struct TopTokensOfRow {
  static constexpr int threads = row_threads;
  float* logp;
  int32_t* best;
  float *of_best, *rest;
  int64_t common, stride, k;

  __device__ void operator()() const {
    const int64_t row = blockIdx.x;
    float* x = logp + row * stride;
    for (int64_t i = 0; i < k; ++i) {
      const int token = index_of(best_of_row(x, common));
      if (threadIdx.x == 0) {
        best[row * k + i] = token;
        of_best[row * k + i] = x[token];
        x[token] = -FLT_MAX;
      }
      __syncthreads();
    }
    const float maximum = x[index_of(best_of_row(x, common))];
    const double log_sum = log_sum_of_row(x, common, maximum, 1);
    if (threadIdx.x == 0) rest[row] = k < common ? static_cast<float>(double{maximum} + log_sum) : no_mass;
  }
};

/// Adds the cross-entropy's part, the slope of the cap and the weight to gradients of a row.
struct RowWriter {
  const DistillationRows& rows;
  float weight, lse, of_targets;

  __device__ RowWriter(const DistillationRows& all, int64_t r)
      : rows(all), weight(-all.weight[r]), lse(all.lse[r]), of_targets(weight * all.cross_entropy) {}

  __device__ float finish(float gradient, float x) const {
    if (of_targets != 0) gradient += of_targets * expf(scaled_difference(x, lse, 1));
    return gradient * rows.slope(x);
  }
  /// In double, since p - 1 of a well predicted target is small.
  __device__ float finish_in_double(double gradient, float x, bool is_target) const {
    const double difference = double{x} - double{lse};
    const double p = exp(difference < double{lowest_difference} ? double{lowest_difference} : difference);
    return static_cast<float>((gradient + double{of_targets} * (is_target ? p - 1 : p)) * double{rows.slope(x)});
  }
};

/// All tokens. d may alias the logits: a thread reads what it overwrites.
template <class T>
struct DenseRow {
  static constexpr int threads = row_threads;
  DistillationRows rows;
  Terms terms;
  T* dlogits;

  __device__ void operator()() const {
    const int64_t r = blockIdx.x;
    T* d = dlogits + r * rows.stride;
    if (!rows.counts(r)) {
      for (int64_t i = threadIdx.x; i < rows.stride; i += threads) store(d + i, 0.0f);
      if (threadIdx.x == 0) rows.write(r, 0, 0, false);
      return;
    }
    const float* x = rows.logits + r * rows.stride;
    const float* p = rows.teacher + r * rows.teacher_stride;
    const float factor = rows.inverse_temperature;
    const int own_best = index_of(best_of_row(x, rows.common)), best = index_of(best_of_row(p, rows.common));
    const float maximum = x[own_best];
    const auto log_sum = static_cast<float>(log_sum_of_row(x, rows.common, maximum, factor));
    double value = 0, slope = 0;
    for (int64_t i = threadIdx.x; i < rows.common; i += threads) {
      const DivergenceTerm<float> term = terms(p[i], (x[i] - maximum) * factor - log_sum);
      value += double{term.value};
      slope += double{term.slope};
    }
    value = row_sum(value);
    slope = row_sum(slope);  // all threads have read what the first ones overwrite
    if (threadIdx.x == 0) rows.write(r, value, 0, own_best == best);
    const RowWriter writer(rows, r);
    const double scale = double{writer.weight} * double{factor};
    for (int64_t i = threadIdx.x; i < rows.stride; i += threads) {
      const float v = x[i], own = (v - maximum) * factor - log_sum;
      const bool is_target = i == rows.targets[r] && rows.cross_entropy != 0;
      double gradient = 0;
      if (i < rows.common) gradient = scale * (double{terms(p[i], own).slope} - double{expf(own)} * slope);
      const float result =
          is_target ? writer.finish_in_double(gradient, v, true) : writer.finish(static_cast<float>(gradient), v);
      store(d + i, i < rows.vocabulary ? result : 0.0f);
    }
  }
};

/// The teacher's top tokens, and all others as one. The logits of the top tokens are kept in shared memory.
template <class T>
struct TopTokensRow {
  static constexpr int threads = row_threads;
  DistillationRows rows;
  Terms terms;
  T* dlogits;

  __device__ void operator()() const {
    const int64_t r = blockIdx.x, k = rows.k;
    T* d = dlogits + r * rows.stride;
    if (!rows.counts(r)) {
      for (int64_t i = threadIdx.x; i < rows.stride; i += threads) store(d + i, 0.0f);
      if (threadIdx.x == 0) rows.write(r, 0, 0, false);
      return;
    }
    float* x = rows.logits + r * rows.stride;
    float* own = dynamic_shared<float>();
    const int32_t* best = rows.best + r * k;
    const float* p = rows.teacher + r * k;
    const float factor = rows.inverse_temperature;
    const int32_t target = rows.targets[r];
    const bool agrees = index_of(best_of_row(x, rows.common)) == best[0], has_others = k < rows.common;
    for (int64_t i = threadIdx.x; i < k; i += threads) {
      own[i] = x[best[i]];
      x[best[i]] = -FLT_MAX;
    }
    __syncthreads();
    const float others_maximum = x[index_of(best_of_row(x, rows.common))];
    const double others_log = log_sum_of_row(x, rows.common, others_maximum, factor);
    const double others = double{others_maximum} * double{factor} + others_log;
    double highest = has_others ? others : -double{FLT_MAX};
    for (int64_t i = 0; i < k; ++i) highest = fmax(highest, double{own[i]} * double{factor});
    double sum = 0, mass = 0;
    for (int64_t i = threadIdx.x; i < k; i += threads) {
      sum += exp(double{own[i]} * double{factor} - highest);
      mass += exp(double{p[i]});
    }
    sum = row_sum(sum) + (has_others ? exp(others - highest) : 0.0);
    mass = row_sum(mass);
    const double log_sum = highest + log(sum), log_others = has_others ? others - log_sum : double{no_mass};
    const float renormalised = rows.tail ? 0.0f : static_cast<float>(log(mass));
    const float p_others = rows.tail && has_others ? rows.rest[r] : no_mass;
    const DivergenceTerm<float> last = terms(p_others, static_cast<float>(log_others));
    const auto log_q = [&](int64_t i) { return static_cast<float>(double{own[i]} * double{factor} - log_sum); };
    double value = 0, slopes = 0;
    for (int64_t i = threadIdx.x; i < k; i += threads) {
      const DivergenceTerm<float> term = terms(p[i] - renormalised, log_q(i));
      value += double{term.value};
      slopes += double{term.slope};
    }
    value = row_sum(value) + double{last.value};
    slopes = row_sum(slopes) + double{last.slope};
    if (threadIdx.x == 0) rows.write(r, value, has_others ? exp(double{rows.rest[r]}) : 0.0, agrees);

    const RowWriter writer(rows, r);
    const double scale = double{writer.weight} * double{factor};
    const double of_others = has_others ? scale * (double{last.slope} - exp(log_others) * slopes) : 0.0;
    for (int64_t i = threadIdx.x; i < rows.stride; i += threads) {
      const float v = x[i];
      double gradient = 0;
      if (i < rows.common) {
        gradient =
            of_others * double{expf(scaled_difference(v, others_maximum, factor) - static_cast<float>(others_log))};
      }
      const float result = i == target && rows.cross_entropy != 0 ? writer.finish_in_double(gradient, v, true)
                                                                  : writer.finish(static_cast<float>(gradient), v);
      store(d + i, i < rows.vocabulary ? result : 0.0f);
    }
    __syncthreads();  // the top tokens are written last
    for (int64_t i = threadIdx.x; i < k; i += threads) {
      const float q = log_q(i);
      const double gradient = scale * (double{terms(p[i] - renormalised, q).slope} - exp(double{q}) * slopes);
      store(d + best[i], writer.finish_in_double(gradient, own[i], best[i] == target));
    }
  }
};

}  // namespace

void log_probabilities(const Tensor& logits, int64_t common, float temperature, Stream& stream) {
  const ProfileSpan span("log_probabilities", [&] { return traffic({&logits, &logits}); });
  LLMTRAIN_CHECK(logits.rank == 2 && logits.dtype == DType::f32 && common > 0 && common <= logits.dim(1),
                 "logits must be fp32 [R, V']");
  launch({logits.dim(0)}, stream, LogProbabilitiesOfRow{logits.as<float>(), common, logits.dim(1), 1 / temperature});
}

void top_tokens(const TeacherRows& out, const Tensor& logp, int64_t common, Stream& stream) {
  const ProfileSpan span("top_tokens", [&] { return traffic({&logp}); });
  check_top_tokens(out, logp, common);
  launch({logp.dim(0)}, stream,
         TopTokensOfRow{logp.as<float>(), out.tokens.as<int32_t>(), out.logp.as<float>(), out.rest.as<float>(), common,
                        logp.dim(1), out.tokens.dim(1)});
}

void distillation_backward(const Tensor& dlogits, const Tensor& logits, const Tensor& targets,
                           const TokenStatistics& statistics, const TokenCotangents& cotangents,
                           const TeacherRows& teacher, int64_t common, int64_t vocabulary,
                           const DistillationTerms& terms, float softcap, Stream& stream) {
  const ProfileSpan span("distillation_backward", [&] { return traffic({&logits, &dlogits}); });
  const DistillationRows rows(dlogits, logits, targets, statistics, cotangents, teacher, common, vocabulary, terms,
                              softcap);
  const Terms of_tokens(terms, DeviceExp());
  dispatch(dlogits, [&]<class T>(T* d) {
    if (rows.k == 0) return launch({logits.dim(0)}, stream, DenseRow<T>{rows, of_tokens, d});
    launch({logits.dim(0)}, stream, TopTokensRow<T>{rows, of_tokens, d},
           static_cast<int>(rows.k * static_cast<int64_t>(sizeof(float))));
  });
}

}  // namespace llmtrain
