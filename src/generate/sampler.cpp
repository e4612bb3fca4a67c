#include "generate/sampler.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/error.hpp"

namespace llmtrain {

namespace {

int32_t highest(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
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

int32_t sample_token(std::span<const float> logits, const SamplingOptions& options, uint32_t bits) {
  LLMTRAIN_CHECK(!logits.empty(), "there is nothing to sample from");
  const int32_t best = highest(logits);
  if (!std::all_of(logits.begin(), logits.end(), [](float x) { return x < INFINITY; })) {  // false for NaN, too
    throw UserError(ExitCode::diverged, "the model's logits are not finite: the weights are damaged or diverged");
  }
  if (options.temperature <= 0) return best;

  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto likelier = [&](int32_t a, int32_t b) {
    const float la = logits[static_cast<size_t>(a)], lb = logits[static_cast<size_t>(b)];
    return la != lb ? la > lb : a < b;
  };
  size_t kept = order.size();
  if (options.top_k > 0) kept = std::min(kept, static_cast<size_t>(options.top_k));
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(kept), order.end(), likelier);

  std::vector<double> weight(kept);
  const double top = logits[static_cast<size_t>(best)];
  for (size_t i = 0; i < kept; ++i) {
    weight[i] = std::exp((double{logits[static_cast<size_t>(order[i])]} - top) / options.temperature);
  }
  double mass = std::accumulate(weight.begin(), weight.end(), 0.0);
  if (options.top_p < 1) {
    const double wanted = options.top_p * mass;
    double reached = 0;
    size_t n = 0;
    while (n < kept && (n == 0 || reached < wanted)) reached += weight[n++];
    kept = n;
    mass = reached;
  }
  if (options.min_p > 0) {
    size_t n = 0;
    double left = 0;
    while (n < kept && weight[n] >= options.min_p) left += weight[n++];  // the first weight is 1
    kept = n;
    mass = left;
  }
  const double u = (static_cast<double>(bits) + 0.5) / 4294967296.0 * mass;
  double reached = 0;
  for (size_t i = 0; i < kept; ++i) {
    reached += weight[i];
    if (u < reached) return order[i];
  }
  return order[kept - 1];
}

}  // namespace llmtrain
