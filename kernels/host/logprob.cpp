#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numbers>

#include "core/profile.hpp"
#include "kernels/host/element.hpp"
#include "kernels/host/fast_math.hpp"
#include "kernels/host/parallel.hpp"
#include "kernels/host/special_functions.hpp"
#include "kernels/logprob_parts.hpp"

namespace llmtrain {

namespace {

using host::Float8;
using host::load8;

/// Number of elements whose exponentials are added in fp32 lanes before the lanes are folded in double.
constexpr int64_t lane_block = 2048;
constexpr int64_t width = 16;  ///< lanes, two vectors

/// Lower limit of differences of logits: the exponential is below 1e-37, and 0 * -inf does not arise.
constexpr float lowest_difference = -87.0f;

/// e^min(x, 0). Rounding the argument costs |x| 2^-24 of relative error, where the result is small anyway.
Float8 exp_capped(Float8 x) { return host::fast_exp2_capped(x * std::numbers::log2e_v<float>); }

float largest(const float* x, int64_t count) {
  Float8 best[2] = {Float8{} - std::numeric_limits<float>::max(), Float8{} - std::numeric_limits<float>::max()};
  int64_t i = 0;
  for (; i + width <= count; i += width) {
    for (int half = 0; half < 2; ++half) {
      const Float8 v = load8(x + i + 8 * half);
      best[half] = v > best[half] ? v : best[half];
    }
  }
  const Float8 both = best[0] > best[1] ? best[0] : best[1];
  float highest = both[0];
  for (int l = 1; l < 8; ++l) highest = std::max(highest, both[l]);
  for (; i < count; ++i) highest = x[i] > highest ? x[i] : highest;
  return highest;
}

/// First index of `value`; 0 if it is not found (a row of NaN).
int32_t index_of(const float* x, int64_t count, float value) {
  int64_t i = 0;
  for (; i + 64 <= count; i += 64) {
    int found = 0;
    for (int64_t l = 0; l < 64; ++l) found |= static_cast<int>(x[i + l] == value);
    if (found != 0) break;
  }
  for (; i < count; ++i) {
    if (x[i] == value) return static_cast<int32_t>(i);
  }
  return 0;
}

/// Sums over a row of e = exp(x - maximum) and of e * (x - maximum).
struct RowSums {
  double weight = 0;
  double moment = 0;
};

/// Sums in fp32 lanes inside a block, folded in double; blocks in order.
template <bool with_moment>
RowSums row_sums(const float* x, int64_t count, float maximum) {
  RowSums sums;
  for (int64_t begin = 0; begin < count; begin += lane_block) {
    const int64_t end = std::min(count, begin + lane_block);
    host::LaneSum weight;
    host::LaneSum moment;
    const auto add = [&](Float8 low, Float8 high) {
      low = host::at_least(low - maximum, lowest_difference);
      high = host::at_least(high - maximum, lowest_difference);
      const Float8 e_low = exp_capped(low);
      const Float8 e_high = exp_capped(high);
      weight.add(e_low, e_high);
      if constexpr (with_moment) moment.add(e_low * low, e_high * high);
    };
    int64_t i = begin;
    for (; i + width <= end; i += width) add(load8(x + i), load8(x + i + 8));
    if (i < end) {  // missing elements get the lower limit
      float rest[width];
      std::fill(rest, rest + width, -std::numeric_limits<float>::max());
      std::copy(x + i, x + end, rest);
      add(load8(rest), load8(rest + 8));
    }
    sums.weight += weight.fold();
    if constexpr (with_moment) sums.moment += moment.fold();
  }
  return sums;
}

/// Sum of a row, in lanes as row_sums.
double sum_of(const float* x, int64_t count) {
  double sum = 0;
  for (int64_t begin = 0; begin < count; begin += lane_block) {
    const int64_t end = std::min(count, begin + lane_block);
    host::LaneSum lanes;
    int64_t i = begin;
    for (; i + width <= end; i += width) lanes.add(load8(x + i), load8(x + i + 8));
    if (i < end) {
      float rest[width] = {};
      std::copy(x + i, x + end, rest);
      lanes.add(load8(rest), load8(rest + 8));
    }
    sum += lanes.fold();
  }
  return sum;
}

void check_targets(const Tensor& targets, int64_t vocabulary) {
  for (int64_t r = 0; r < targets.numel(); ++r) {
    const int32_t t = targets.as<int32_t>()[r];
    LLMTRAIN_CHECK(t == ignore_target || (t >= 0 && t < vocabulary), "a target lies outside the vocabulary");
  }
}

}  // namespace

void softcap_logits(const Tensor& logits, float cap, Stream& /*stream*/) {
  const ProfileSpan span("softcap_logits", [&] { return traffic({&logits, &logits}); });
  check_softcap(logits, cap);
  float* x = logits.as<float>();
  host::parallel_blocks(logits.numel(), host::elementwise_block, [=](int64_t begin, int64_t end) {
    const auto capped = [cap](Float8 v) { return cap * host::fast_tanh(v / cap); };
    int64_t i = begin;
    for (; i + 8 <= end; i += 8) host::store8(x + i, capped(load8(x + i)));
    if (i == end) return;
    const Float8 last = capped(load8(x + i, end - i));
    for (int64_t l = 0; i < end; ++i, ++l) x[i] = last[l];
  });
}

namespace {

/// x /= temperature; tokens that are not kept get `excluded`.
void temper(const Tensor& x, float temperature, const Tensor& kept, const TokenRange& tokens, float excluded) {
  const ProfileSpan span("temper_logits", [&] { return traffic({&x, &x}); });
  check_tempered(x, temperature, kept, tokens);
  const auto* words = data_or_null<uint32_t>(kept);
  using Word8 = host::BitsOf<Float8>::Unsigned;
  constexpr Word8 bit_of_lane = {1, 2, 4, 8, 16, 32, 64, 128};
  host::dispatch(x.dtype, [=, &x](auto* tag) {
    auto* x0 = static_cast<decltype(tag)>(x.data);
    const int64_t stride = x.dim(1), count = tokens.count, words_of_row = (tokens.vocabulary + 31) / 32;
    host::parallel_for(x.dim(0), [=](int64_t r) {
      auto* row = x0 + r * stride;
      for (int64_t i = 0; i < count; i += 8) {
        const int64_t n = std::min<int64_t>(8, count - i);
        const Float8 tempered = host::load_up_to(row + i, n) / temperature;
        const uint32_t bits =
            words == nullptr ? ~0U : bits_from(words + r * words_of_row, words_of_row, tokens.first + i);
        host::store_up_to(row + i, ((Word8{} + bits) & bit_of_lane) != 0 ? tempered : Float8{} + excluded, n);
      }
    });
  });
}

}  // namespace

void temper_logits(const Tensor& logits, float temperature, const Tensor& kept, const TokenRange& tokens, Stream&) {
  LLMTRAIN_CHECK(logits.dtype == DType::f32, "logits must be fp32");
  temper(logits, temperature, kept, tokens, -std::numeric_limits<float>::infinity());
}

void temper_gradient(const Tensor& dlogits, float temperature, const Tensor& kept, const TokenRange& tokens, Stream&) {
  temper(dlogits, temperature, kept, tokens, 0.0f);
}

void mean_logits(const Tensor& out, const Tensor& logits, int64_t vocabulary, Stream& /*stream*/) {
  constexpr int64_t lanes = 8;
  const int64_t stride = logits.dim(1);
  const float* x0 = logits.as<float>();
  float* to = out.as<float>();
  host::parallel_for(logits.dim(0), [=](int64_t r) {
    std::array<double, lanes> sum{};
    const float* x = x0 + r * stride;
    for (int64_t i = 0; i < vocabulary; ++i) sum[static_cast<size_t>(i % lanes)] += double{x[i]};
    double all = 0;
    for (const double lane : sum) all += lane;
    to[r] = static_cast<float>(all / static_cast<double>(vocabulary));
  });
}

void logprob_forward(const TokenStatistics& statistics, const Tensor& logits, const Tensor& targets, int64_t vocabulary,
                     Stream& /*stream*/) {
  const ProfileSpan span("logprob_forward", [&] {
    return Work{0, 4.0 * static_cast<double>(logits.dim(0)) * static_cast<double>(vocabulary)};
  });
  check_logits(logits, targets, statistics, vocabulary);
  check_targets(targets, vocabulary);
  const int64_t stride = logits.dim(1);
  const float* x0 = logits.as<float>();
  const int32_t* target = targets.as<int32_t>();
  float* logp = data_or_null<float>(statistics.logp);
  float* lse = data_or_null<float>(statistics.lse);
  float* entropy = data_or_null<float>(statistics.entropy);
  float* uniform = data_or_null<float>(statistics.uniform);
  int32_t* argmax = data_or_null<int32_t>(statistics.argmax);
  host::parallel_for(logits.dim(0), [=](int64_t r) {
    const float* x = x0 + r * stride;
    const float maximum = largest(x, vocabulary);
    if (argmax != nullptr) argmax[r] = index_of(x, vocabulary, maximum);
    if (logp == nullptr && lse == nullptr && entropy == nullptr && uniform == nullptr) return;
    const RowSums sums =
        entropy != nullptr ? row_sums<true>(x, vocabulary, maximum) : row_sums<false>(x, vocabulary, maximum);
    const double log_sum = double{maximum} + std::log(sums.weight);
    if (lse != nullptr) lse[r] = static_cast<float>(log_sum);
    if (uniform != nullptr) {
      uniform[r] = static_cast<float>(log_sum - sum_of(x, vocabulary) / static_cast<double>(vocabulary));
    }
    // H = -sum p log p = log(sum e) - sum e (x - max) / sum e
    if (entropy != nullptr) entropy[r] = static_cast<float>(std::log(sums.weight) - sums.moment / sums.weight);
    if (logp != nullptr) {
      const int32_t t = target[r];
      logp[r] = t == ignore_target ? 0.0f : static_cast<float>(double{x[t]} - log_sum);
    }
  });
}

void logprob_parts(const Tensor& parts, const Tensor& logits, const Tensor& targets, const TokenRange& tokens,
                   Stream& /*stream*/) {
  const ProfileSpan span("logprob_forward", [&] { return traffic({&logits}); });
  check_logits(logits, targets, {}, tokens);
  check_targets(targets, tokens.vocabulary);
  check_parts(parts, 1, logits.dim(0));
  const int64_t stride = logits.dim(1);
  const float* x0 = logits.as<float>();
  const int32_t* target = targets.as<int32_t>();
  auto* part = static_cast<LogprobPart*>(parts.data);
  host::parallel_for(logits.dim(0), [=](int64_t r) {
    const float* x = x0 + r * stride;
    const float maximum = largest(x, tokens.count);
    const RowSums sums = row_sums<true>(x, tokens.count, maximum);
    const int64_t t = target[r] - tokens.first;
    part[r] = {sums.weight,
               sums.moment,
               sum_of(x, tokens.count),
               maximum,
               maximum,
               target[r] >= 0 && t >= 0 && t < tokens.count ? x[t] : 0.0f,
               static_cast<int32_t>(tokens.first) + index_of(x, tokens.count, maximum)};
  });
}

void add_logprob_parts(const TokenStatistics& statistics, const Tensor& parts, const Tensor& targets,
                       int64_t vocabulary, Stream& /*stream*/) {
  const RowOfParts row(statistics, parts, targets, vocabulary);
  for (int64_t r = 0; r < targets.numel(); ++r) row(r);
}

namespace {

/// Inputs of one row's backward pass. p = exp(x - lse); with H the entropy, log p + H = x - lse + H.
struct RowGradient {
  float lse;
  float constant;     ///< coefficient of p: lse' + 2 lse lse_squared' + uniform' - logp' - entropy' H
  float entropy;      ///< coefficient of p (x - lse): -entropy'
  float inverse_cap;  ///< 1 / softcap, or 0: the cap's slope is 1 - (x / softcap)^2
  float offset;       ///< added to each element: -uniform' / V
};

/// d may alias x. Without `all_terms` entropy and offset are 0.
template <bool all_terms, bool capped, class T>
void row_backward(T* d, const float* x, int64_t count, int64_t stride, const RowGradient& g) {
  const auto gradient = [&g](Float8 v) {
    const Float8 log_p = host::at_least(v - g.lse, lowest_difference);
    Float8 p = exp_capped(log_p);
    if constexpr (!all_terms) return p * g.constant;
    if constexpr (!capped) return p * (g.entropy * log_p + g.constant) + g.offset;
    const Float8 slope = 1.0f - (v * g.inverse_cap) * (v * g.inverse_cap);
    p *= slope;
    return p * (g.entropy * log_p + g.constant) + g.offset * slope;
  };
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) host::store8(d + i, gradient(load8(x + i)));
  if (i < count) {
    const Float8 last = gradient(load8(x + i, count - i));
    for (int64_t l = 0; i < count; ++i, ++l) host::store(d + i, last[l]);
  }
  for (; i < stride; ++i) host::store(d + i, 0.0f);
}

}  // namespace

void logprob_backward(const Tensor& dlogits, const Tensor& logits, const Tensor& targets,
                      const TokenStatistics& statistics, const TokenCotangents& cotangents, const TokenRange& tokens,
                      float softcap, Stream& /*stream*/) {
  const ProfileSpan span("logprob_backward", [&] { return traffic({&logits, &dlogits}); });
  check_logits(logits, targets, statistics, tokens);
  check_targets(targets, tokens.vocabulary);
  const int64_t rows = logits.dim(0);
  check_logits_gradient(dlogits, logits, statistics, cotangents);
  const int64_t stride = logits.dim(1), count = tokens.count;
  const float inverse_cap = softcap > 0 ? 1.0f / softcap : 0.0f;
  const float* x0 = logits.as<float>();
  const int32_t* target = targets.as<int32_t>();
  const float* lse = statistics.lse.as<float>();
  const float* entropy = data_or_null<float>(statistics.entropy);
  const float* dlogp = data_or_null<float>(cotangents.logp);
  const float* dlse = data_or_null<float>(cotangents.lse);
  const float* dentropy = data_or_null<float>(cotangents.entropy);
  const float* duniform = data_or_null<float>(cotangents.uniform);
  const float* dlse_squared = data_or_null<float>(cotangents.lse_squared);
  host::dispatch(dlogits.dtype, [=](auto* tag) {
    auto* d0 = static_cast<decltype(tag)>(dlogits.data);
    host::parallel_for(rows, [=](int64_t r) {
      const int64_t t = target[r] - tokens.first;
      const float from_logp = dlogp != nullptr && target[r] != ignore_target ? dlogp[r] : 0.0f;
      const float from_entropy = dentropy != nullptr ? dentropy[r] : 0.0f;
      const float h = dentropy != nullptr ? entropy[r] : 0.0f;
      const float from_uniform = duniform != nullptr ? duniform[r] : 0.0f;
      float from_lse = dlse != nullptr ? dlse[r] : 0.0f;
      if (dlse_squared != nullptr) from_lse += 2 * lse[r] * dlse_squared[r];
      const RowGradient g{lse[r], from_lse + from_uniform - from_logp - from_entropy * h, -from_entropy, inverse_cap,
                          -from_uniform / static_cast<float>(tokens.vocabulary)};
      const float* x = x0 + r * stride;
      auto* d = d0 + r * stride;
      // p - 1 of a well predicted target is small and is computed in double, before x is overwritten
      float at_target = 0;
      const bool has_target = from_logp != 0 && t >= 0 && t < count;
      if (has_target) {
        const double log_p = std::max(double{x[t]} - double{g.lse}, double{lowest_difference});
        const double p = std::exp(log_p);
        const double capped = double{x[t]} * double{inverse_cap};
        at_target = static_cast<float>(
            (p * (double{g.constant} + double{g.entropy} * log_p) + (double{g.offset} + double{from_logp})) *
            (1 - capped * capped));
      }
      if (inverse_cap > 0) {
        row_backward<true, true>(d, x, count, stride, g);
      } else if (from_entropy != 0 || from_uniform != 0) {
        row_backward<true, false>(d, x, count, stride, g);
      } else {
        row_backward<false, false>(d, x, count, stride, g);
      }
      if (has_target) host::store(d + t, at_target);
    });
  });
}

void logprob_forward_backward(const Tensor& dlogits, const Tensor& logits, const Tensor& targets,
                              const TokenStatistics& statistics, const TokenCotangents& cotangents, int64_t vocabulary,
                              float softcap, Stream& stream) {
  logprob_forward(statistics, logits, targets, vocabulary, stream);
  logprob_backward(dlogits, logits, targets, statistics, cotangents, vocabulary, softcap, stream);
}

}  // namespace llmtrain
