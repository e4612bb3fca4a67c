// Draws of tokens: one block per text. Sums are compared with a bound of their difference from those of
// kernels/draw_token.cpp, so that a token is that of the host, or undecided.

#include <bit>
#include <cmath>

#include "core/philox.hpp"
#include "core/profile.hpp"
#include "kernels/cuda/row_reduction.cuh"
#include "kernels/cuda/sampling_shape.hpp"
#include "kernels/sampling.hpp"

namespace llmtrain {

namespace {

using namespace cuda;

static_assert(sampling_threads == row_threads && sampling_buckets == row_warps);

struct Draw {
  uint32_t row, bits;
};

/// A sum over a row is known within this fraction of it, whatever the order and the last bits of the exponentials.
__device__ double relative_error(int64_t vocabulary) { return static_cast<double>(vocabulary) * 0x1p-50 + 0x1p-43; }

/// Exponents below have weights that change no sum.
constexpr double lowest_exponent = -700;
/// The definition's weights are 0 below: e^x is less than half of the smallest number.
constexpr double vanishing_exponent = -746;

/// Orders floats as integers; both zeros are equal.
__device__ uint32_t order_of(float x) { return static_cast<uint32_t>(ordered_key(x, 0) >> 32); }
__device__ float value_of(uint32_t order) {
  return std::bit_cast<float>((order >> 31) != 0 ? order & 0x7FFFFFFFu : ~order);
}

/// A row of logits and the weights of its tokens.
struct Weights {
  const float* x;
  int64_t vocabulary;
  double top, inverse_temperature;

  __device__ double exponent(float logit) const { return (double{logit} - top) * inverse_temperature; }
  __device__ double weight(float logit) const {
    const double e = exponent(logit);
    return e > lowest_exponent ? exp(e) : 0.0;
  }
  /// Calls f(logit) for the tokens of this thread.
  template <class F>
  __device__ void each(const F& f) const {
    for (int64_t i = threadIdx.x * Pack::size; i < vocabulary; i += row_threads * Pack::size) {
      const Pack p = load_pack(x, i, vocabulary);
      for (int k = 0; k < Pack::size; ++k) {
        if (i + k < vocabulary) f(p.v[k]);
      }
    }
  }
};

/// The tokens from the highest logit down to those of order `lowest`.
struct Cut {
  uint32_t lowest = 0;
  double above = 0, at = 0, all = 0;  ///< weights of the tokens above that order, of those that have it, of all
  double target = 0;
};

/// Finds the highest order down to which the weights reach the target, four bits of it at a time. A thread adds the
/// weights of its tokens in a column of `sums`, so that their order is fixed.
template <class Weight, class Target>
__device__ Cut find_cut(const Weights& row, double* sums, const Weight& weight, const Target& target) {
  LLMTRAIN_SHARED(double[sampling_buckets], totals);
  Cut cut;
  for (int shift = 28; shift >= 0; shift -= 4) {
    for (int b = 0; b < sampling_buckets; ++b) sums[b * row_threads + threadIdx.x] = 0;
    row.each([&](float logit) {
      const uint32_t order = order_of(logit);
      if (shift < 28 && (order ^ cut.lowest) >> (shift + 4) != 0) return;
      sums[(order >> shift & 15) * row_threads + threadIdx.x] += weight(logit, order);
    });
    __syncthreads();
    const int bucket = static_cast<int>(threadIdx.x) / warp_lanes;
    double total = 0;
    for (int t = lane(); t < row_threads; t += warp_lanes) total += sums[bucket * row_threads + t];
    total = warp_sum(total);
    if (lane() == 0) totals[bucket] = total;
    __syncthreads();
    if (shift == 28) {
      for (int b = 0; b < sampling_buckets; ++b) cut.all += totals[b];
      cut.target = target(cut.all);
    }
    int b = sampling_buckets - 1;
    for (; b > 0 && cut.above + totals[b] < cut.target; --b) cut.above += totals[b];
    cut.lowest |= static_cast<uint32_t>(b) << shift;
    cut.at = totals[b];
  }
  return cut;
}

template <bool filtered>
struct SampleRow {
  static constexpr int threads = row_threads;
  int32_t* tokens;
  uint32_t* kept;
  const float* logits;
  const Draw* draws;
  int64_t vocabulary, stride, words;
  double temperature, top_p, min_p;
  int64_t top_k;

  __device__ void operator()() const {
    const Draw draw = draws[blockIdx.x];
    Weights row{logits + static_cast<int64_t>(draw.row) * stride, vocabulary, 0, 1 / temperature};
    const int highest = highest_token(row);
    row.top = highest < 0 ? 0.0 : double{row.x[highest]};
    int32_t token = highest;
    if (highest >= 0 && temperature > 0) token = draw_from(row, draw.bits);
    if (token < 0 && kept != nullptr) keep_all();
    if (threadIdx.x == 0) tokens[blockIdx.x] = token < 0 ? undecided_token : token;
  }

 private:
  /// -1: there are logits that are not finite.
  __device__ int highest_token(const Weights& row) const {
    float best = -INFINITY;
    int best_index = 0, other = 0;
    for (int64_t i = threadIdx.x * Pack::size; i < vocabulary; i += threads * Pack::size) {
      const Pack p = load_pack(row.x, i, vocabulary);
      for (int k = 0; k < Pack::size; ++k) {
        if (i + k >= vocabulary) continue;
        if (!(p.v[k] < INFINITY)) other = 1;  // NaN as well
        if (p.v[k] > best) {
          best = p.v[k];
          best_index = static_cast<int>(i) + k;
        }
      }
    }
    const int index = index_of(row_maximum(ordered_key(best, best_index)));
    return row_maximum(other) != 0 || row.x[index] == -INFINITY ? -1 : index;
  }

  __device__ void keep_all() const {
    __syncthreads();
    for (int64_t w = threadIdx.x; w < words; w += threads) kept[blockIdx.x * words + w] = ~0u;
  }

  /// Order of the lowest logit that top-k and top-p keep; false: the sums do not tell it.
  __device__ bool find_lowest(const Weights& row, uint32_t& lowest) const {
    double* const sums = dynamic_shared<double>();
    if (top_k > 0 && top_k < vocabulary) {
      lowest = find_cut(
                   row, sums, [](float, uint32_t) { return 1.0; }, [&](double) { return static_cast<double>(top_k); })
                   .lowest;
    }
    if (top_p >= 1) return true;
    const Cut cut = find_cut(
        row, sums, [&](float logit, uint32_t order) { return order >= lowest ? row.weight(logit) : 0.0; },
        [&](double all) { return top_p * all; });
    const double error = cut.all * relative_error(vocabulary), last = row.weight(value_of(cut.lowest));
    const bool is_first = cut.above == 0 && cut.at == last;  // which is kept in any case
    // All equal logits at the cut are kept, or the host counts them.
    const bool needs_last = is_first || cut.above + cut.at - last < cut.target - error;
    lowest = cut.lowest;
    return needs_last && cut.above + cut.at > cut.target + error;
  }

  /// -1: undecided.
  __device__ int draw_from(const Weights& row, uint32_t bits) const {
    uint32_t lowest = 0;
    if constexpr (filtered) {
      if (!find_lowest(row, lowest)) return -1;
    }
    double* const sums = dynamic_shared<double>();
    __syncthreads();
    const int64_t tiles = sampling_tiles(vocabulary);
    int unclear = 0;
    for (int64_t tile = threadIdx.x / warp_lanes; tile < tiles; tile += row_warps) {
      double sum = 0;
      each_pack(row, tile, [&](int64_t i, const PackOf<4>& p) {
        uint32_t own = 0;
        for (int k = 0; k < Pack::size; ++k) {
          if (i + k >= vocabulary) continue;
          double weight = 0;
          if (is_kept(row, p.v[k], lowest, weight, unclear)) own |= 1u << (i % 32 + k);
          sum += weight;
        }
        if constexpr (filtered) {
          if (kept != nullptr) store_kept(i, own);
        }
      });
      sum = warp_sum(sum);
      if (lane() == 0) sums[tile] = sum;
    }
    if (row_maximum(unclear) != 0) return -1;  // also a barrier
    int drawn = -1;
    if (threadIdx.x < warp_lanes) {
      double all = 0, before = 0;
      for (int64_t t = lane(); t < tiles; t += warp_lanes) all += sums[t];
      all = warp_sum(all);
      const double u = random_uniform(bits) * all, error = all * relative_error(vocabulary);
      int64_t tile = 0;
      for (; tile + 1 < tiles && before + sums[tile] <= u; ++tile) before += sums[tile];
      each_pack(row, tile, [&](int64_t i, const PackOf<4>& p) {
        double weights[Pack::size], own = 0;
        for (int k = 0; k < Pack::size; ++k) {
          weights[k] = 0;
          if (i + k < vocabulary) is_kept(row, p.v[k], lowest, weights[k], unclear);
          own += weights[k];
        }
        double end = own;  // of this lane's tokens
        for (int distance = 1; distance < warp_lanes; distance *= 2) {
          const double other = __shfl_sync(0xFFFFFFFFu, end, (lane() - distance) & (warp_lanes - 1));
          if (lane() >= distance) end += other;
        }
        double reached = before + (end - own);
        for (int k = 0; k < Pack::size; ++k) {
          const double next = reached + weights[k];
          if (u - reached > error && next - u > error) drawn = static_cast<int>(i) + k;
          reached = next;
        }
        before += __shfl_sync(0xFFFFFFFFu, end, warp_lanes - 1);
      });
    }
    return row_maximum(drawn);
  }

  /// Calls f(first token, its logits) for all packs of a tile, the same number of times in all lanes of a warp.
  template <class F>
  __device__ void each_pack(const Weights& row, int64_t tile, const F& f) const {
    for (int64_t first = tile * sampling_tile; first < (tile + 1) * sampling_tile && first < vocabulary;
         first += warp_lanes * Pack::size) {
      const int64_t i = first + lane() * Pack::size;
      f(i, load_pack(row.x, i, vocabulary));
    }
  }

  /// Sets the weight of a token that is kept. `unclear` becomes 1 if that is not sure.
  __device__ bool is_kept(const Weights& row, float logit, uint32_t lowest, double& weight, int& unclear) const {
    if constexpr (filtered) {
      if (order_of(logit) < lowest) return false;
    }
    weight = row.weight(logit);
    if constexpr (filtered) {
      if (min_p > 0 && fabs(weight - min_p) <= min_p * 0x1p-40) unclear = 1;
      const double e = row.exponent(logit);
      if (kept != nullptr && min_p < 0x1p-1000 && e > vanishing_exponent && e <= lowest_exponent) unclear = 1;
      if (weight < min_p) weight = 0;
    }
    return weight > 0;
  }

  /// Eight lanes have the bits of a word.
  __device__ void store_kept(int64_t i, uint32_t own) const {
    for (int distance = 1; distance < 8; distance *= 2) own |= __shfl_xor_sync(0xFFFFFFFFu, own, distance);
    if (lane() % 8 == 0 && i / 32 < words) kept[blockIdx.x * words + i / 32] = own;
  }
};

}  // namespace

void sample_tokens(const Tensor& tokens, const Tensor& kept, const Tensor& logits, const Tensor& draws,
                   int64_t vocabulary, const TokenFilters& filters, Stream& stream) {
  const ProfileSpan span("sample_tokens", [&] { return traffic({&logits}); });
  check_draws(tokens, kept, logits, draws, vocabulary, filters);
  const auto start = [&]<bool filtered>() {
    launch({tokens.numel()}, stream,
           SampleRow<filtered>{tokens.as<int32_t>(), kept.empty() ? nullptr : kept.as<uint32_t>(), logits.as<float>(),
                               static_cast<const Draw*>(draws.data), vocabulary, logits.dim(1), (vocabulary + 31) / 32,
                               filters.temperature, filters.top_p, filters.min_p, filters.top_k},
           static_cast<int>(sampling_shared_bytes(vocabulary, filtered)));
  };
  filters.exclude_tokens() || !kept.empty() ? start.template operator()<true>() : start.template operator()<false>();
}

}  // namespace llmtrain
