#include <cfloat>
#include <cmath>

#include "core/profile.hpp"
#include "kernels/cuda/row_reduction.cuh"
#include "kernels/logprob_parts.hpp"

namespace llmtrain {

namespace {

using namespace cuda;

/// Lower limit of differences of logits: the exponential is below 1e-37, and 0 * -inf does not arise.
constexpr float lowest_difference = -87.0f;
/// Maximum distance of a logit above the reference: sums are seldom rescaled, and entropies stay exact.
constexpr float slack = 2.0f;

/// Propagates NaN.
__device__ float at_least(float x, float bound) { return x < bound ? bound : x; }
__device__ float at_most(float x, float bound) { return x > bound ? bound : x; }

struct Softcap {
  float* x;
  int64_t elements;
  float cap;
  __device__ void operator()(int64_t pack) const {
    Pack p = load_pack(x, pack * Pack::size, elements);
    for (float& v : p.v) v = cap * tanhf(v / cap);
    store_pack(x, pack * Pack::size, elements, p);
  }
};

/// x /= temperature; tokens that are not kept get `excluded`.
template <class T>
struct Temper {
  T* x;
  const uint32_t* kept;
  int64_t first, count, words, stride, packs;  ///< words and packs of a row
  float temperature, excluded;

  Temper(const Tensor& t, T* data, float divisor, const Tensor& bits, const TokenRange& tokens, float rest)
      : x(data),
        kept(data_or_null<uint32_t>(bits)),
        first(tokens.first),
        count(tokens.count),
        words((tokens.vocabulary + 31) / 32),
        stride(t.dim(1)),
        packs((tokens.count + Pack::size - 1) / Pack::size),
        temperature(divisor),
        excluded(rest) {}
  __device__ void operator()(int64_t index) const {
    const int64_t row = index / packs, i = index % packs * Pack::size;
    Pack p = load_pack(x + row * stride, i, count);
    const uint32_t bits = kept == nullptr ? ~0U : bits_from(kept + row * words, words, first + i);
    for (int k = 0; k < Pack::size; ++k) p.v[k] = (bits >> k & 1U) != 0 ? p.v[k] / temperature : excluded;
    store_pack(x + row * stride, i, count, p);
  }
};

void temper(const Tensor& x, float temperature, const Tensor& kept, const TokenRange& tokens, float excluded,
            Stream& stream) {
  const ProfileSpan span("temper_logits", [&] { return traffic({&x, &x}); });
  check_tempered(x, temperature, kept, tokens);
  dispatch(x, [&]<class T>(T* data) {
    const Temper<T> f(x, data, temperature, kept, tokens, excluded);
    for_each(x.dim(0) * f.packs, stream, f);
  });
}

/// Sums over logits of e = exp(x - reference) and of e (x - reference). Initially empty.
template <bool with_moment>
struct RowSums {
  float reference = -FLT_MAX;
  double weight = 0, moment = 0;

  /// In double the difference of any two floats is finite.
  __device__ void move_reference(float to) {
    const double difference = double{reference} - double{to};
    const double scale = exp(difference);
    if constexpr (with_moment) moment = scale * (moment + weight * difference);
    weight *= scale;
    reference = to;
  }
  __device__ void add(const Pack& p) {
    float highest = p.v[0];
    for (const float x : p.v) highest = x > highest ? x : highest;
    if (highest > reference + slack) move_reference(highest);
    float pack_weight = 0;
    [[maybe_unused]] float pack_moment = 0;
    for (const float x : p.v) {
      const float difference = at_least(x - reference, lowest_difference);
      const float e = expf(difference);
      pack_weight += e;
      if constexpr (with_moment) pack_moment = fmaf(e, difference, pack_moment);
    }
    weight += pack_weight;
    if constexpr (with_moment) moment += pack_moment;
  }
};

/// Elements of a row, from its start, that ScoreAndDifferentiate keeps in shared memory: two blocks fit a
/// multiprocessor of Hopper, one any GPU.
constexpr int64_t kept_elements = (96 << 10) / sizeof(float);

/// Statistics that are not requested are not computed: whether a row's memory or its exponentials take longer was not
/// measured.
template <bool with_entropy, bool with_argmax, bool with_uniform>
struct ForwardRow {
  static constexpr int threads = row_threads;
  const float* logits;
  const int32_t* targets;
  int64_t vocabulary, stride;
  float *logp, *lse, *entropy, *uniform;
  int32_t* argmax;
  int64_t kept = 0;  ///< elements of the row that go to shared memory

  __device__ void operator()() const {
    const int64_t row = blockIdx.x;
    const float* x = logits + row * stride;
    RowSums<with_entropy> sums;
    [[maybe_unused]] float best = -INFINITY;
    [[maybe_unused]] int best_index = 0;  // for a row of NaN
    [[maybe_unused]] double logits_sum = 0;
    constexpr int64_t step = threads * Pack::size;
    const int64_t first = threadIdx.x * Pack::size;
    Pack next = load_pack(x, first, vocabulary);
    for (int64_t i = first; i < vocabulary; i += step) {
      Pack p = next;
      next = load_pack(x, i + step, vocabulary);  // on its way while this one is added
      if (i + Pack::size > vocabulary) {
        for (int k = 0; k < Pack::size; ++k) p.v[k] = i + k < vocabulary ? p.v[k] : -INFINITY;
      }
      if (i < kept) store_pack(dynamic_shared<float>(), i, i + Pack::size, p);
      if constexpr (with_uniform) {
        for (int k = 0; k < Pack::size; ++k) logits_sum += i + k < vocabulary ? p.v[k] : 0.0f;
      }
      if constexpr (with_argmax) {
        for (int k = 0; k < Pack::size; ++k) {
          if (p.v[k] > best) {
            best = p.v[k];
            best_index = static_cast<int>(i) + k;
          }
        }
      }
      sums.add(p);
    }
    if constexpr (with_argmax) {
      const uint64_t key = row_maximum(ordered_key(best, best_index));
      if (threadIdx.x == 0) argmax[row] = index_of(key);
    }
    if (logp == nullptr && lse == nullptr && entropy == nullptr && !with_uniform) return;
    sums.move_reference(row_maximum(sums.reference));
    const double weight = row_sum(sums.weight);
    [[maybe_unused]] const double moment = with_entropy ? row_sum(sums.moment) : 0.0;
    [[maybe_unused]] const double total = with_uniform ? row_sum(logits_sum) : 0.0;
    if (threadIdx.x != 0) return;
    const double log_sum = double{sums.reference} + log(weight);
    if (lse != nullptr) lse[row] = static_cast<float>(log_sum);
    if constexpr (with_uniform) uniform[row] = static_cast<float>(log_sum - total / static_cast<double>(vocabulary));
    // H = -sum p log p = log(sum e) - sum e (x - reference) / sum e
    if constexpr (with_entropy) entropy[row] = static_cast<float>(log(weight) - moment / weight);
    if (logp != nullptr) {
      const int32_t t = targets[row];
      const bool known = t >= 0 && t < vocabulary;  // the host cannot check: the row's loss shows it
      logp[row] = t == ignore_target ? 0.0f : known ? static_cast<float>(double{x[t]} - log_sum) : NAN;
    }
  }
};

/// A block's part of the statistics of a row.
struct PartOfRow {
  static constexpr int threads = row_threads;
  LogprobPart* parts;
  const float* logits;
  const int32_t* targets;
  int64_t first, count, stride;

  __device__ void operator()() const {
    const int64_t row = blockIdx.x;
    const float* x = logits + row * stride;
    RowSums<true> sums;
    float best = -INFINITY;
    int best_index = 0;  // for a row of NaN
    double total = 0;
    for (int64_t i = threadIdx.x * Pack::size; i < count; i += threads * Pack::size) {
      Pack p = load_pack(x, i, count);
      for (int k = 0; k < Pack::size; ++k) {
        const bool counts = i + k < count;
        if (!counts) p.v[k] = -INFINITY;
        if (counts) total += p.v[k];
        if (p.v[k] > best) {
          best = p.v[k];
          best_index = static_cast<int>(i) + k;
        }
      }
      sums.add(p);
    }
    const int index = index_of(row_maximum(ordered_key(best, best_index)));
    sums.move_reference(row_maximum(sums.reference));
    const double weight = row_sum(sums.weight), moment = row_sum(sums.moment), all = row_sum(total);
    if (threadIdx.x != 0) return;
    const int64_t target = targets[row] - first;
    const bool has_target = targets[row] >= 0 && target >= 0 && target < count;
    parts[row] = {weight,
                  moment,
                  all,
                  sums.reference,
                  count == 0 ? -FLT_MAX : x[index],
                  has_target ? x[target] : 0.0f,
                  static_cast<int32_t>(first) + index};
  }
};

/// p = exp(x - lse); with H the entropy, log p + H = x - lse + H. d may alias x.
template <class T>
struct BackwardRow {
  static constexpr int threads = row_threads;
  T* dlogits;
  const float* logits;
  const int32_t* targets;
  const float *lse, *entropy;
  const float *dlogp, *dlse, *dentropy, *duniform, *dlse_squared;
  int64_t first, count, vocabulary, stride;  ///< tokens [first, first + count) of the vocabulary
  float inverse_cap;                         ///< 1 / softcap, or 0: the cap's slope is 1 - (x / softcap)^2
  int64_t kept = 0;                          ///< elements of the row in shared memory, each read by who stored it

  __device__ void operator()() const {
    const int64_t row = blockIdx.x;
    const float* x = logits + row * stride;
    const int32_t target = targets[row];
    const float center = lse[row];
    const float from_logp = dlogp != nullptr && target != ignore_target ? dlogp[row] : 0.0f;
    const float from_entropy = dentropy != nullptr ? dentropy[row] : 0.0f;
    const float h = dentropy != nullptr ? entropy[row] : 0.0f;
    const float from_uniform = duniform != nullptr ? duniform[row] : 0.0f;
    const float offset = -from_uniform / static_cast<float>(vocabulary);
    float from_lse = dlse != nullptr ? dlse[row] : 0.0f;
    if (dlse_squared != nullptr) from_lse += 2 * center * dlse_squared[row];
    const float constant = from_lse + from_uniform - from_logp - from_entropy * h;
    const int64_t own = int64_t{target} - first;
    const bool has_target = from_logp != 0 && own >= 0 && own < count && own / Pack::size % threads == threadIdx.x;
    const float target_logit = has_target ? x[own] : 0.0f;  // before this thread overwrites it
    for (int64_t i = threadIdx.x * Pack::size; i < stride; i += threads * Pack::size) {
      Pack p = i < kept ? load_pack(dynamic_shared<float>(), i, i + Pack::size) : load_pack(x, i, stride);
      for (int k = 0; k < Pack::size; ++k) {
        const float v = p.v[k];
        const float log_p = at_least(v - center, lowest_difference);
        float d = fmaf(expf(at_most(log_p, 0.0f)), fmaf(-from_entropy, log_p, constant), offset);
        if (inverse_cap > 0) d *= 1.0f - (v * inverse_cap) * (v * inverse_cap);
        p.v[k] = i + k < count ? d : 0.0f;
      }
      store_pack(dlogits + row * stride, i, stride, p);
    }
    if (!has_target) return;
    store(dlogits + row * stride + own,
          at_target(target_logit, center, constant, from_entropy, offset + double{from_logp}));
  }

  /// p - 1 of a well predicted target is small and is computed in double.
  __device__ float at_target(float x, float center, float constant, float from_entropy, double added) const {
    const double difference = double{x} - double{center};
    const double log_p = difference < lowest_difference ? lowest_difference : difference;
    const double capped = double{x} * double{inverse_cap};
    return static_cast<float>((exp(log_p) * (double{constant} - double{from_entropy} * log_p) + added) *
                              (1 - capped * capped));
  }
};

/// Both passes over a row.
template <class Forward, class T>
struct ScoreAndDifferentiate {
  static constexpr int threads = row_threads;
  Forward forward;
  BackwardRow<T> backward;

  __device__ void operator()() const {
    forward();
    __syncthreads();  // the row's statistics are there, and its logits have been read
    backward();
  }
};

/// Calls f(kernel of the forward pass).
template <class F>
void with_forward(const TokenStatistics& statistics, const Tensor& logits, const Tensor& targets, int64_t vocabulary,
                  const F& f) {
  const auto start = [&]<bool with_entropy, bool with_argmax, bool with_uniform>() {
    f(ForwardRow<with_entropy, with_argmax, with_uniform>{
        logits.as<float>(), targets.as<int32_t>(), vocabulary, logits.dim(1), data_or_null<float>(statistics.logp),
        data_or_null<float>(statistics.lse), data_or_null<float>(statistics.entropy),
        data_or_null<float>(statistics.uniform), data_or_null<int32_t>(statistics.argmax)});
  };
  const auto choose = [&]<bool with_entropy, bool with_argmax>() {
    statistics.uniform.empty() ? start.template operator()<with_entropy, with_argmax, false>()
                               : start.template operator()<with_entropy, with_argmax, true>();
  };
  if (statistics.entropy.empty()) {
    statistics.argmax.empty() ? choose.template operator()<false, false>() : choose.template operator()<false, true>();
  } else {
    statistics.argmax.empty() ? choose.template operator()<true, false>() : choose.template operator()<true, true>();
  }
}

/// Calls f(kernel of the backward pass).
template <class F>
void with_backward(const Tensor& dlogits, const Tensor& logits, const Tensor& targets,
                   const TokenStatistics& statistics, const TokenCotangents& cotangents, const TokenRange& tokens,
                   float softcap, const F& f) {
  dispatch(dlogits, [&]<class T>(T* d) {
    f(BackwardRow<T>{d, logits.as<float>(), targets.as<int32_t>(), statistics.lse.as<float>(),
                     data_or_null<float>(statistics.entropy), data_or_null<float>(cotangents.logp),
                     data_or_null<float>(cotangents.lse), data_or_null<float>(cotangents.entropy),
                     data_or_null<float>(cotangents.uniform), data_or_null<float>(cotangents.lse_squared), tokens.first,
                     tokens.count, tokens.vocabulary, logits.dim(1), softcap > 0 ? 1.0f / softcap : 0.0f});
  });
}

}  // namespace

void softcap_logits(const Tensor& logits, float cap, Stream& stream) {
  const ProfileSpan span("softcap_logits", [&] { return traffic({&logits, &logits}); });
  check_softcap(logits, cap);
  const int64_t n = logits.numel();
  for_each((n + Pack::size - 1) / Pack::size, stream, Softcap{logits.as<float>(), n, cap});
}

void temper_logits(const Tensor& logits, float temperature, const Tensor& kept, const TokenRange& tokens,
                   Stream& stream) {
  LLMTRAIN_CHECK(logits.dtype == DType::f32, "logits must be fp32");
  temper(logits, temperature, kept, tokens, -INFINITY, stream);
}

void temper_gradient(const Tensor& dlogits, float temperature, const Tensor& kept, const TokenRange& tokens,
                     Stream& stream) {
  temper(dlogits, temperature, kept, tokens, 0.0f, stream);
}

namespace {

/// A row by a warp.
struct MeanOfRow {
  float* out;
  const float* x;
  int64_t vocabulary, stride;
  __device__ void operator()(int64_t r) const {
    double sum = 0;
    for (int64_t i = cuda::lane(); i < vocabulary; i += cuda::warp_lanes) sum += static_cast<double>(x[r * stride + i]);
    sum = cuda::warp_sum(sum);
    if (cuda::lane() == 0) out[r] = static_cast<float>(sum / static_cast<double>(vocabulary));
  }
};

}  // namespace

void mean_logits(const Tensor& out, const Tensor& logits, int64_t vocabulary, Stream& stream) {
  cuda::for_each_warp(logits.dim(0), stream,
                      MeanOfRow{out.as<float>(), logits.as<const float>(), vocabulary, logits.dim(1)});
}

void logprob_forward(const TokenStatistics& statistics, const Tensor& logits, const Tensor& targets, int64_t vocabulary,
                     Stream& stream) {
  const ProfileSpan span("logprob_forward", [&] {
    return Work{0, 4.0 * static_cast<double>(logits.dim(0)) * static_cast<double>(vocabulary)};
  });
  check_logits(logits, targets, statistics, vocabulary);
  with_forward(statistics, logits, targets, vocabulary,
               [&](const auto& forward) { launch({logits.dim(0)}, stream, forward); });
}

void logprob_parts(const Tensor& parts, const Tensor& logits, const Tensor& targets, const TokenRange& tokens,
                   Stream& stream) {
  const ProfileSpan span("logprob_forward", [&] { return traffic({&logits}); });
  check_logits(logits, targets, {}, tokens);
  check_parts(parts, 1, logits.dim(0));
  launch({logits.dim(0)}, stream,
         PartOfRow{static_cast<LogprobPart*>(parts.data), logits.as<float>(), targets.as<int32_t>(), tokens.first,
                   tokens.count, logits.dim(1)});
}

void add_logprob_parts(const TokenStatistics& statistics, const Tensor& parts, const Tensor& targets,
                       int64_t vocabulary, Stream& stream) {
  for_each(targets.numel(), stream, RowOfParts(statistics, parts, targets, vocabulary));
}

void logprob_backward(const Tensor& dlogits, const Tensor& logits, const Tensor& targets,
                      const TokenStatistics& statistics, const TokenCotangents& cotangents, const TokenRange& tokens,
                      float softcap, Stream& stream) {
  const ProfileSpan span("logprob_backward", [&] { return traffic({&logits, &dlogits}); });
  check_logits(logits, targets, statistics, tokens);
  check_logits_gradient(dlogits, logits, statistics, cotangents);
  with_backward(dlogits, logits, targets, statistics, cotangents, tokens, softcap,
                [&](const auto& backward) { launch({logits.dim(0)}, stream, backward); });
}

void logprob_forward_backward(const Tensor& dlogits, const Tensor& logits, const Tensor& targets,
                              const TokenStatistics& statistics, const TokenCotangents& cotangents, int64_t vocabulary,
                              float softcap, Stream& stream) {
  const ProfileSpan span("logprob_forward_backward", [&] { return traffic({&logits, &dlogits}); });
  check_logits(logits, targets, statistics, vocabulary);
  check_logits_gradient(dlogits, logits, statistics, cotangents);
  const int64_t kept = std::min(vocabulary, kept_elements);
  const auto bytes = static_cast<int>(blocks_for(kept, Pack::size) * Pack::size * int64_t{sizeof(float)});
  with_forward(statistics, logits, targets, vocabulary, [&]<class Forward>(Forward forward) {
    with_backward(dlogits, logits, targets, statistics, cotangents, vocabulary, softcap,
                  [&]<class T>(BackwardRow<T> backward) {
                    forward.kept = backward.kept = kept;
                    launch({logits.dim(0)}, stream, ScoreAndDifferentiate<Forward, T>{forward, backward}, bytes);
                  });
  });
}

}  // namespace llmtrain
