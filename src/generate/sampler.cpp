#include "generate/sampler.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "core/error.hpp"
#include "generate/token_filters.hpp"
#include "kernels/sampling.hpp"

namespace llmtrain {

void penalize_repetition(std::span<float> logits, std::span<const int32_t> occurred, double penalty) {
  if (penalty == 1) return;
  std::vector<int32_t> once(occurred.begin(), occurred.end());
  std::ranges::sort(once);
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

TokenFilters filters_of(const SamplingOptions& options) {
  return {options.temperature, options.top_k, options.top_p, options.min_p};
}

size_t highest(std::span<const float> logits) { return highest_logit(logits); }

std::vector<double> token_weights(std::span<const float> logits, const SamplingOptions& options) {
  return token_weights(logits, filters_of(options));
}

float log_probability(std::span<const float> logits, int32_t token) {
  const double top = logits[highest(logits)];
  double mass = 0;
  for (const float logit : logits) mass += std::exp(double{logit} - top);
  return static_cast<float>(double{logits[static_cast<size_t>(token)]} - top - std::log(mass));
}

int32_t sample_token(std::span<const float> logits, const SamplingOptions& options, uint32_t bits) {
  return draw_token(logits, filters_of(options), bits);
}

}  // namespace llmtrain
