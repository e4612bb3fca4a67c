#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <optional>

#include "core/error.hpp"
#include "kernels/sampling.hpp"

namespace llmtrain {

namespace {

float kth_highest(std::span<const float> logits, size_t k) {
  std::vector<float> highest(logits.begin(), logits.begin() + static_cast<std::ptrdiff_t>(k));  // the lowest is on top
  std::ranges::make_heap(highest, std::greater<>());
  for (const float logit : logits.subspan(k)) {
    if (logit <= highest.front()) continue;
    std::ranges::pop_heap(highest, std::greater<>());
    highest.back() = logit;
    std::ranges::push_heap(highest, std::greater<>());
  }
  return highest.front();
}

using Double4 [[gnu::vector_size(32)]] = double;
using Float4 [[gnu::vector_size(16)]] = float;

/// e^x for x <= 0, whose relative error is a few units of the last place.
Double4 exponential(Double4 x) {
  using Bits [[gnu::vector_size(32)]] = uint64_t;
  constexpr double lowest = -700, log2_e = 0x1.71547652b82fep0;
  constexpr double ln2_high = 0x1.62e42feep-1, ln2_low = 0x1.a39ef35793c76p-33;
  constexpr double round = 0x1.8p52;  // a sum with it has the nearest integer in its last bits
  x = x > lowest ? x : Double4{} + lowest;
  const Double4 shifted = x * log2_e + round, n = shifted - round;
  const Double4 r = (x - n * ln2_high) - n * ln2_low;
  Double4 sum = Double4{} + 1.0;
  for (int k = 13; k > 0; --k) sum = 1.0 + sum * r * (1.0 / k);  // Taylor's series, |r| <= ln(2) / 2
  return sum * std::bit_cast<Double4>(std::bit_cast<Bits>(Double4{} + 1.0) + (std::bit_cast<Bits>(shifted) << 52));
}

/// Draws from e^((logit - top) / temperature) of all tokens, if its sums are exact enough to tell the token.
class FastDraw {
 public:
  FastDraw(std::span<const float> logits, double top, double temperature)
      : logits_(logits), top_(top), scale_(1 / temperature) {
    for (size_t first = 0; first < logits.size(); first += block) {
      Double4 sum{};
      weigh(first, [&](size_t, Double4 weights) { sum += weights; });
      sums_.push_back((sum[0] + sum[1]) + (sum[2] + sum[3]));
      mass_ += sums_.back();
    }
  }

  std::optional<size_t> draw(double share) const {
    const double error = mass_ * (static_cast<double>(logits_.size()) * 0x1p-50 + 0x1p-43), u = share * mass_;
    double reached = 0;
    size_t b = 0;
    for (; b + 1 < sums_.size() && reached + sums_[b] <= u; ++b) reached += sums_[b];
    std::optional<size_t> drawn;
    weigh(b * block, [&](size_t first, Double4 weights) {
      for (size_t i = 0; i < 4; ++i) {
        const double next = reached + weights[i];
        if (u - reached > error && next - u > error) drawn = first + i;
        reached = next;
      }
    });
    return drawn;
  }

 private:
  static constexpr size_t block = 1024;

  /// Calls f(first, weights) for every four tokens of a block; those past the end have no weight.
  template <class F>
  void weigh(size_t begin, const F& f) const {
    const size_t end = std::min(begin + block, logits_.size());
    for (size_t i = begin; i < end; i += 4) {
      Float4 four = Float4{} - INFINITY;
      std::memcpy(&four, &logits_[i], std::min<size_t>(4, end - i) * sizeof(float));
      const Double4 x = (__builtin_convertvector(four, Double4) - top_) * scale_;
      const Double4 weights = exponential(x);
      f(i, x > -700.0 ? weights : Double4{});
    }
  }

  std::span<const float> logits_;
  double top_, scale_;
  std::vector<double> sums_;  ///< of blocks
  double mass_ = 0;
};

/// Keeps only the most probable tokens that are needed to reach `p` of the mass. A heap sorts no more tokens than are
/// kept.
void keep_mass(std::span<double> weights, std::span<const float> logits, double p) {
  std::vector<size_t> left;
  double mass = 0;
  for (size_t id = 0; id < weights.size(); ++id) {
    if (weights[id] <= 0) continue;
    left.push_back(id);
    mass += weights[id];
  }
  const auto less_probable = [&](size_t a, size_t b) { return logits[a] != logits[b] ? logits[a] < logits[b] : a > b; };
  std::make_heap(left.begin(), left.end(), less_probable);
  double reached = 0;
  do {
    std::pop_heap(left.begin(), left.end(), less_probable);
    reached += weights[left.back()];
    left.pop_back();
  } while (!left.empty() && reached < p * mass);
  for (const size_t id : left) weights[id] = 0;
}

}  // namespace

size_t highest_logit(std::span<const float> logits) {
  LLMTRAIN_CHECK(!logits.empty(), "there is nothing to sample from");
  using Float8 [[gnu::vector_size(32)]] = float;
  using Mask8 [[gnu::vector_size(32)]] = int32_t;
  Float8 tops = Float8{} - INFINITY;
  Mask8 finite = ~Mask8{};
  const auto see = [&](const float* from, size_t count) {
    Float8 eight = Float8{} - INFINITY;
    std::memcpy(&eight, from, count * sizeof(float));
    tops = eight > tops ? eight : tops;
    finite &= eight < INFINITY;  // false also for NaN
  };
  const size_t whole = logits.size() / 8 * 8;
  for (size_t i = 0; i < whole; i += 8) see(&logits[i], 8);  // a load, where the count is known
  if (whole < logits.size()) see(&logits[whole], logits.size() - whole);
  float top = -INFINITY;
  bool all_finite = true;
  for (int l = 0; l < 8; ++l) {
    top = std::max(top, tops[l]);
    all_finite = all_finite && finite[l] != 0;
  }
  if (!all_finite) {
    throw UserError(ExitCode::diverged, "the model's logits are not finite: the weights are damaged or diverged");
  }
  return static_cast<size_t>(std::ranges::find(logits, top) - logits.begin());
}

std::vector<double> token_weights(std::span<const float> logits, const TokenFilters& filters) {
  const double top = logits[highest_logit(logits)];
  float lowest_kept = -INFINITY;
  if (filters.top_k > 0 && static_cast<size_t>(filters.top_k) < logits.size()) {
    lowest_kept = kth_highest(logits, static_cast<size_t>(filters.top_k));
  }
  std::vector<double> weights(logits.size());
  for (size_t id = 0; id < logits.size(); ++id) {
    if (logits[id] >= lowest_kept) weights[id] = std::exp((double{logits[id]} - top) / filters.temperature);
  }
  if (filters.top_p < 1) keep_mass(weights, logits, filters.top_p);
  if (filters.min_p > 0) {
    for (double& weight : weights) {
      if (weight < filters.min_p) weight = 0;
    }
  }
  return weights;
}

int32_t draw_token(std::span<const float> logits, const TokenFilters& filters, uint32_t bits) {
  const size_t top = highest_logit(logits);
  if (filters.temperature <= 0) return static_cast<int32_t>(top);
  const double share = (static_cast<double>(bits) + 0.5) / 4294967296.0;
  if (filters.top_k == 0 && filters.top_p == 1 && filters.min_p == 0) {
    const std::optional<size_t> drawn = FastDraw(logits, logits[top], filters.temperature).draw(share);
    if (drawn) return static_cast<int32_t>(*drawn);
  }
  const std::vector<double> weights = token_weights(logits, filters);
  const double u = share * std::accumulate(weights.begin(), weights.end(), 0.0);
  double reached = 0;
  size_t last = 0;
  for (size_t id = 0; id < weights.size(); ++id) {
    if (weights[id] <= 0) continue;
    last = id;
    reached += weights[id];
    if (u < reached) break;
  }
  return static_cast<int32_t>(last);
}

void mark_kept(std::span<uint32_t> bits, std::span<const float> logits, const TokenFilters& filters) {
  const std::vector<double> weights = token_weights(logits, filters);
  for (size_t id = 0; id < weights.size(); ++id) {
    if (weights[id] > 0) bits[id / 32] |= 1u << id % 32;
  }
}

}  // namespace llmtrain
