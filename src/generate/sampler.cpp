#include "generate/sampler.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "core/error.hpp"

namespace llmtrain {

namespace {

float kth_highest(std::span<const float> logits, size_t k) {
  std::vector<float> copy(logits.begin(), logits.end());
  const auto kth = copy.begin() + static_cast<std::ptrdiff_t>(k - 1);
  std::nth_element(copy.begin(), kth, copy.end(), std::greater<>());
  return *kth;
}

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

void penalize_repetition(std::span<float> logits, std::span<const int32_t> occurred, double penalty) {
  if (penalty == 1) return;
  std::vector<int32_t> once(occurred.begin(), occurred.end());
  std::sort(once.begin(), once.end());
  once.erase(std::unique(once.begin(), once.end()), once.end());
  const auto factor = static_cast<float>(penalty);
  for (const int32_t id : once) {
    if (id < 0 || static_cast<size_t>(id) >= logits.size()) continue;
    float& logit = logits[static_cast<size_t>(id)];
    logit = logit > 0 ? logit / factor : logit * factor;
  }
}

void exclude_repeated_ngrams(std::span<float> logits, std::span<const int32_t> text, int64_t n) {
  const auto length = static_cast<int64_t>(text.size());
  if (n <= 0 || length < n) return;
  const std::span<const int32_t> last = text.last(static_cast<size_t>(n - 1));
  for (int64_t begin = 0; begin + n <= length; ++begin) {
    if (!std::ranges::equal(text.subspan(static_cast<size_t>(begin), static_cast<size_t>(n - 1)), last)) continue;
    const int32_t id = text[static_cast<size_t>(begin + n - 1)];
    if (id >= 0 && static_cast<size_t>(id) < logits.size()) logits[static_cast<size_t>(id)] = -INFINITY;
  }
  if (std::ranges::all_of(logits, [](float logit) { return logit == -INFINITY; })) {
    throw UserError(ExitCode::bad_content, "every token would repeat a sequence of tokens: choose longer ones than " +
                                               std::to_string(n) + " (no_repeat_ngram)");
  }
}

size_t highest(std::span<const float> logits) {
  LLMTRAIN_CHECK(!logits.empty(), "there is nothing to sample from");
  if (!std::all_of(logits.begin(), logits.end(), [](float x) { return x < INFINITY; })) {  // false also for NaN
    throw UserError(ExitCode::diverged, "the model's logits are not finite: the weights are damaged or diverged");
  }
  return static_cast<size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

std::vector<double> token_weights(std::span<const float> logits, const SamplingOptions& options) {
  const double top = logits[highest(logits)];
  float lowest_kept = -INFINITY;
  if (options.top_k > 0 && static_cast<size_t>(options.top_k) < logits.size()) {
    lowest_kept = kth_highest(logits, static_cast<size_t>(options.top_k));
  }
  std::vector<double> weights(logits.size());
  for (size_t id = 0; id < logits.size(); ++id) {
    if (logits[id] >= lowest_kept) weights[id] = std::exp((double{logits[id]} - top) / options.temperature);
  }
  if (options.top_p < 1) keep_mass(weights, logits, options.top_p);
  if (options.min_p > 0) {
    for (double& weight : weights) {
      if (weight < options.min_p) weight = 0;
    }
  }
  return weights;
}

float log_probability(std::span<const float> logits, int32_t token) {
  const double top = logits[highest(logits)];
  double mass = 0;
  for (const float logit : logits) mass += std::exp(double{logit} - top);
  return static_cast<float>(double{logits[static_cast<size_t>(token)]} - top - std::log(mass));
}

int32_t sample_token(std::span<const float> logits, const SamplingOptions& options, uint32_t bits) {
  if (options.temperature <= 0) return static_cast<int32_t>(highest(logits));
  const std::vector<double> weights = token_weights(logits, options);
  const double mass = std::accumulate(weights.begin(), weights.end(), 0.0);
  const double u = (static_cast<double>(bits) + 0.5) / 4294967296.0 * mass;
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

}  // namespace llmtrain
