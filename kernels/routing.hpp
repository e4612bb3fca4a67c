#pragma once
// Arithmetic of a row of a router: scores of experts, the choice of some, their weights, and the derivatives of these.
// One implementation serves both devices. Mixtral (Jiang et al. 2024, arXiv:2401.04088), Qwen3 (arXiv:2505.09388) and
// OLMoE (arXiv:2409.02060) score by softmax; DeepSeek-V3 (arXiv:2412.19437, section 2.1.2) by sigmoid, with a bias that
// only selects, and chooses groups of experts first.

#include <cmath>
#include <cstdint>

#include "core/host_device.hpp"

namespace llmtrain {

/// Most groups of experts, whose choice is a word of bits.
inline constexpr int64_t max_expert_groups = 64;

struct RoutingRule {
  enum class Score : uint8_t { softmax, sigmoid };
  /// Score of a group: its best expert (DeepSeek-V2), or the sum of its best two (DeepSeek-V3).
  enum class GroupScore : uint8_t { best, best_two };

  int64_t experts = 1;
  int64_t per_token = 1;  ///< k, at most `experts`
  Score score = Score::softmax;
  bool normalized = false;  ///< weights are divided by their sum
  float scale = 1;          ///< factor on the weights
  int64_t groups = 1;       ///< groups of consecutive experts, at most max_expert_groups
  int64_t groups_per_token = 1;
  GroupScore group_score = GroupScore::best;
};

namespace routing {

/// A value of the statistics of a pass, in units of 2^-24: sums of them are exact. Values of a router that diverges,
/// NaN among them, become 2^16, so that sums over 2^22 rows fit.
LLMTRAIN_HOST_DEVICE inline int64_t in_units(double value) {
  constexpr double units = int64_t{1} << 24, most = int64_t{1} << 16;
  return static_cast<int64_t>(std::rint((value < most ? value : most) * units));
}

LLMTRAIN_HOST_DEVICE inline float sigmoid(float x) { return static_cast<float>(1.0 / (1.0 + std::exp(-double{x}))); }

/// The score of an expert for the choice alone: with the bias that balances the load.
LLMTRAIN_HOST_DEVICE inline float selection(const float* scores, const float* bias, int64_t expert) {
  const float value = scores[expert] + (bias != nullptr ? bias[expert] : 0);
  return value == value ? value : -INFINITY;  // a router that diverges still chooses experts
}

/// Overwrites logits by scores; returns log(sum(exp(logits))), or 0 for sigmoid.
LLMTRAIN_HOST_DEVICE inline float score(const RoutingRule& rule, float* row) {
  if (rule.score == RoutingRule::Score::sigmoid) {
    for (int64_t e = 0; e < rule.experts; ++e) row[e] = sigmoid(row[e]);
    return 0;
  }
  double highest = row[0], sum = 0;
  for (int64_t e = 1; e < rule.experts; ++e) highest = row[e] > highest ? row[e] : highest;
  for (int64_t e = 0; e < rule.experts; ++e) sum += std::exp(row[e] - highest);
  for (int64_t e = 0; e < rule.experts; ++e) row[e] = static_cast<float>(std::exp(row[e] - highest) / sum);
  return static_cast<float>(highest + std::log(sum));
}

LLMTRAIN_HOST_DEVICE inline float group_score(const RoutingRule& rule, const float* scores, const float* bias,
                                              int64_t group) {
  const int64_t size = rule.experts / rule.groups, first = group * size;
  float best = -INFINITY, second = -INFINITY;
  for (int64_t e = first; e < first + size; ++e) {
    const float value = selection(scores, bias, e);
    if (value > best) {
      second = best;
      best = value;
    } else if (value > second) {
      second = value;
    }
  }
  return rule.group_score == RoutingRule::GroupScore::best || size == 1 ? best : best + second;
}

/// Returns a bit for each group that may be chosen: the best ones, of equal ones the first.
LLMTRAIN_HOST_DEVICE inline uint64_t choose_groups(const RoutingRule& rule, const float* scores, const float* bias) {
  if (rule.groups_per_token >= rule.groups) return ~uint64_t{0};
  uint64_t chosen = 0;
  for (int64_t slot = 0; slot < rule.groups_per_token; ++slot) {
    int64_t best = -1;
    float best_score = 0;
    for (int64_t g = 0; g < rule.groups; ++g) {
      if ((chosen >> g & 1) != 0) continue;
      const float value = group_score(rule, scores, bias, g);
      if (best >= 0 && !(value > best_score)) continue;
      best = g;
      best_score = value;
    }
    chosen |= uint64_t{1} << best;
  }
  return chosen;
}

/// Writes the experts with the highest scores, of equal ones the first, in ascending order.
LLMTRAIN_HOST_DEVICE inline void choose(const RoutingRule& rule, const float* scores, const float* bias,
                                        int32_t* choices) {
  const uint64_t groups = choose_groups(rule, scores, bias);
  int64_t last = -1;
  float last_score = 0;
  for (int64_t slot = 0; slot < rule.per_token; ++slot) {
    int64_t best = -1;
    float best_score = 0;
    for (int64_t e = 0; e < rule.experts; ++e) {
      if (rule.groups > 1 && (groups >> (e * rule.groups / rule.experts) & 1) == 0) continue;
      const float value = selection(scores, bias, e);
      const bool taken = slot > 0 && (value > last_score || (value == last_score && e <= last));
      if (taken || (best >= 0 && !(value > best_score))) continue;
      best = e;
      best_score = value;
    }
    last = best;
    last_score = best_score;
    int64_t place = slot;
    for (; place > 0 && choices[place - 1] > best; --place) choices[place] = choices[place - 1];
    choices[place] = static_cast<int32_t>(best);
  }
}

/// Sum of the chosen scores, as the divisor of weights.
LLMTRAIN_HOST_DEVICE inline double divisor(const RoutingRule& rule, const float* scores, const int32_t* choices) {
  if (!rule.normalized) return 1;
  double sum = rule.score == RoutingRule::Score::sigmoid ? 1e-20 : 0;  // sigmoids may all be 0
  for (int64_t slot = 0; slot < rule.per_token; ++slot) sum += scores[choices[slot]];
  return sum;
}

/// Factors of the outputs of the chosen experts.
LLMTRAIN_HOST_DEVICE inline void weigh(const RoutingRule& rule, const float* scores, const int32_t* choices,
                                       float* weights) {
  const double factor = rule.scale / divisor(rule, scores, choices);
  for (int64_t slot = 0; slot < rule.per_token; ++slot) {
    weights[slot] = static_cast<float>(scores[choices[slot]] * factor);
  }
}

/// dlogits [E] of a row. dweights: of the chosen experts. balance [E]: derivative of the loss by each score, beside
/// those; null: none. log_sum: that by log(sum(exp(logits))).
LLMTRAIN_HOST_DEVICE inline void differentiate(const RoutingRule& rule, float* dlogits, const float* scores,
                                               const int32_t* choices, const float* dweights, const float* balance,
                                               double log_sum) {
  const double sum = divisor(rule, scores, choices), factor = rule.scale / sum;
  double mean = 0;  // of dweights, by the normalised weights
  for (int64_t slot = 0; rule.normalized && slot < rule.per_token; ++slot) {
    mean += scores[choices[slot]] / sum * dweights[slot];
  }
  // dscore of each expert, in ascending order like the choices
  const auto each = [&](const auto& see) {
    int64_t slot = 0;
    for (int64_t e = 0; e < rule.experts; ++e) {
      double d = balance != nullptr ? balance[e] : 0;
      if (slot < rule.per_token && choices[slot] == e) d += (dweights[slot++] - mean) * factor;
      see(e, d);
    }
  };
  if (rule.score == RoutingRule::Score::sigmoid) {
    return each([&](int64_t e, double d) { dlogits[e] = static_cast<float>(d * scores[e] * (1.0 - scores[e])); });
  }
  double inner = 0;
  each([&](int64_t e, double d) { inner += d * scores[e]; });
  each([&](int64_t e, double d) { dlogits[e] = static_cast<float>(scores[e] * (d - inner + log_sum)); });
}

}  // namespace routing

}  // namespace llmtrain
