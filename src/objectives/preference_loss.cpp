#include "objectives/preference_loss.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "core/error.hpp"

namespace llmtrain {

namespace {

/// A number with its derivatives with respect to the two log-probabilities of a pair (dual numbers).
struct Dual {
  double value = 0, chosen = 0, rejected = 0;

  Dual() = default;
  Dual(double constant) : value(constant) {}  // NOLINT(google-explicit-constructor): formulas have constants
  Dual(double v, double c, double r) : value(v), chosen(c), rejected(r) {}

  /// f(x), where f(x.value) = y and f'(x.value) = slope.
  Dual mapped(double y, double slope) const { return {y, slope * chosen, slope * rejected}; }
};

Dual operator+(Dual a, Dual b) { return {a.value + b.value, a.chosen + b.chosen, a.rejected + b.rejected}; }
Dual operator-(Dual a) { return {-a.value, -a.chosen, -a.rejected}; }
Dual operator-(Dual a, Dual b) { return a + -b; }
Dual operator*(Dual a, Dual b) {
  return {a.value * b.value, a.chosen * b.value + a.value * b.chosen, a.rejected * b.value + a.value * b.rejected};
}
Dual operator/(Dual a, double b) { return {a.value / b, a.chosen / b, a.rejected / b}; }

double sigmoid(double x) {
  const double e = std::exp(-std::abs(x));
  return x >= 0 ? 1 / (1 + e) : e / (1 + e);
}
Dual sigmoid(Dual x) {
  const double y = sigmoid(x.value);
  return x.mapped(y, y * sigmoid(-x.value));
}
Dual log_sigmoid(Dual x) {
  return x.mapped(std::min(x.value, 0.0) - std::log1p(std::exp(-std::abs(x.value))), sigmoid(-x.value));
}
Dual exp(Dual x) {
  const double y = std::exp(x.value);
  return x.mapped(y, y);
}
/// log(1 - exp(x)) for x < 0.
Dual log1m_exp(Dual x) {
  const double v = std::min(x.value, -1e-12);  // a completion of probability 1
  const double y = v > -std::numbers::ln2 ? std::log(-std::expm1(v)) : std::log1p(-std::exp(v));
  return x.mapped(y, 1 / -std::expm1(-v));
}
Dual squared(Dual x) { return x * x; }
Dual relu(Dual x) { return x.value > 0 ? x : Dual(0); }

/// Quantities of a pair from which the losses are built.
struct Terms {
  const DpoConfig& config;
  const PreferencePair& pair;
  Dual chosen, rejected;              ///< log-probabilities
  Dual chosen_ratio, rejected_ratio;  ///< log-ratios of the policy to the reference

  explicit Terms(const DpoConfig& c, const PreferencePair& p)
      : config(c),
        pair(p),
        chosen(p.chosen.logp, 1, 0),
        rejected(p.rejected.logp, 0, 1),
        chosen_ratio(chosen - p.chosen.reference),
        rejected_ratio(rejected - p.rejected.reference) {}

  static Dual mean(Dual x, const DocumentScore& document) {
    return x / static_cast<double>(std::max<int64_t>(document.targets, 1));
  }
  Dual mean_chosen() const { return mean(chosen, pair.chosen); }
  Dual mean_rejected() const { return mean(rejected, pair.rejected); }

  /// f'(ratio) of the f-divergence (Wang et al. 2024, arXiv:2309.16240), where log-ratios are those of reverse_kl.
  Dual score(Dual ratio) const {
    constexpr double largest = 80;  // exp() stays finite in fp32, as TRL limits it
    switch (config.f_divergence) {
      case DpoConfig::Divergence::reverse_kl:
        return ratio;
      case DpoConfig::Divergence::forward_kl:
        return 1.0 - exp(-ratio);
      case DpoConfig::Divergence::js:
        return std::numbers::ln2 + log_sigmoid(ratio);
      case DpoConfig::Divergence::alpha: {
        const double power = config.f_alpha - 1;
        if (std::abs(power) < 1e-6) return ratio;
        const Dual x = power * ratio;
        return (exp(x.value > largest ? Dual(largest) : x) - 1.0) / power;
      }
    }
    return ratio;
  }
  /// beta times the difference of scores.
  Dual margin() const { return config.beta * (score(chosen_ratio) - score(rejected_ratio)); }
  /// The same for scores per target.
  Dual mean_difference() const {
    return mean(score(chosen_ratio), pair.chosen) - mean(score(rejected_ratio), pair.rejected);
  }
};

/// Cross-entropy of a preference that holds with probability 1 - label_smoothing.
Dual smoothed(const Terms& t, Dual x) {
  const double e = t.config.label_smoothing;
  return -(1 - e) * log_sigmoid(x) - e * log_sigmoid(-x);
}

Dual sigmoid_loss(const Terms& t) { return smoothed(t, t.margin()); }
Dual hinge_loss(const Terms& t) { return relu(1.0 - t.margin()); }
Dual ipo_loss(const Terms& t) { return squared(t.mean_difference() - 1 / (2 * t.config.beta)); }
Dual ipo_summed_loss(const Terms& t) {
  return squared(t.score(t.chosen_ratio) - t.score(t.rejected_ratio) - 1 / (2 * t.config.beta));
}
Dual robust_loss(const Terms& t) {
  const double e = t.config.label_smoothing;
  const Dual x = t.margin();
  return (e * log_sigmoid(-x) - (1 - e) * log_sigmoid(x)) / (1 - 2 * e);
}
Dual exo_pair_loss(const Terms& t) {
  const double e = t.config.label_smoothing;
  const Dual x = t.margin();
  return sigmoid(x) * (log_sigmoid(x) - std::log1p(-e)) + sigmoid(-x) * (log_sigmoid(-x) - std::log(e));
}
Dual nca_pair_loss(const Terms& t) {
  const Dual chosen = t.config.beta * t.chosen_ratio, rejected = t.config.beta * t.rejected_ratio;
  return -log_sigmoid(chosen) - 0.5 * log_sigmoid(-chosen) - 0.5 * log_sigmoid(-rejected);
}
Dual bco_pair_loss(const Terms& t) {
  return -log_sigmoid(t.config.beta * t.chosen_ratio) - log_sigmoid(-(t.config.beta * t.rejected_ratio));
}
Dual sppo_hard_loss(const Terms& t) {
  const double half = 0.5 / t.config.beta;
  return squared(t.chosen_ratio - half) + squared(t.rejected_ratio + half);
}
Dual apo_zero_loss(const Terms& t) {
  return 1.0 - sigmoid(t.config.beta * t.chosen_ratio) + sigmoid(t.config.beta * t.rejected_ratio);
}
Dual apo_down_loss(const Terms& t) {
  return sigmoid(t.config.beta * t.chosen_ratio) + 1.0 - sigmoid(t.config.beta * (t.chosen_ratio - t.rejected_ratio));
}
Dual discopop_loss(const Terms& t) {
  constexpr double temperature = 0.05;
  const Dual x = t.margin();
  // sigmoid(x / temperature) exp(-x), whose factors would overflow
  return sigmoid(-x / temperature) * -log_sigmoid(x) + exp(log_sigmoid(x / temperature) - x);
}
Dual sigmoid_norm_loss(const Terms& t) { return -log_sigmoid(t.config.beta * t.mean_difference()); }
/// Summed over pairs and divided by their number, the mean over all targets of chosen documents.
Dual sft_loss(const Terms& t) { return -t.chosen / std::max(t.pair.mean_chosen_targets, 1.0); }
/// Hong et al. 2024, arXiv:2403.07691: the likelihood of the response, and the ratio of odds.
Dual orpo_loss(const Terms& t) {
  const Dual chosen = t.mean_chosen(), rejected = t.mean_rejected();
  const Dual log_odds = (chosen - rejected) - (log1m_exp(chosen) - log1m_exp(rejected));
  return -chosen - t.config.beta * log_sigmoid(log_odds);
}
Dual simpo_loss(const Terms& t) {
  return smoothed(t, t.config.beta * (t.mean_chosen() - t.mean_rejected()) - t.config.simpo_gamma);
}
Dual cpo_loss(const Terms& t) { return smoothed(t, t.config.beta * (t.chosen - t.rejected)) + sft_loss(t); }

Dual aot_loss(const Terms& t) { return smoothed(t, t.config.beta * (t.chosen - t.rejected - t.pair.counterpart)); }
/// Half of the loss of the chosen document and its counterpart, and of the rejected one and its.
Dual aot_unpaired_loss(const Terms& t) {
  const Dual of_chosen = smoothed(t, t.config.beta * (t.chosen_ratio - t.pair.counterpart));
  const Dual of_rejected = smoothed(t, t.config.beta * (t.pair.rejected_counterpart - t.rejected_ratio));
  // Every loss is counted by both of its documents, and each has one derivative.
  return {(of_chosen.value + of_rejected.value) / 2, of_chosen.chosen, of_rejected.rejected};
}

struct LossEntry {
  PreferenceLoss name;
  Dual (*loss)(const Terms& terms);  ///< null: it is not a loss over pairs
  bool uses_reference;
};
constexpr std::array entries = {
    LossEntry{PreferenceLoss::sigmoid, sigmoid_loss, true},
    LossEntry{PreferenceLoss::hinge, hinge_loss, true},
    LossEntry{PreferenceLoss::ipo, ipo_loss, true},
    LossEntry{PreferenceLoss::ipo_summed, ipo_summed_loss, true},
    LossEntry{PreferenceLoss::robust, robust_loss, true},
    LossEntry{PreferenceLoss::exo_pair, exo_pair_loss, true},
    LossEntry{PreferenceLoss::nca_pair, nca_pair_loss, true},
    LossEntry{PreferenceLoss::bco_pair, bco_pair_loss, true},
    LossEntry{PreferenceLoss::sppo_hard, sppo_hard_loss, true},
    LossEntry{PreferenceLoss::aot, aot_loss, true},
    LossEntry{PreferenceLoss::aot_unpaired, aot_unpaired_loss, true},
    LossEntry{PreferenceLoss::apo_zero, apo_zero_loss, true},
    LossEntry{PreferenceLoss::apo_down, apo_down_loss, true},
    LossEntry{PreferenceLoss::discopop, discopop_loss, true},
    LossEntry{PreferenceLoss::sigmoid_norm, sigmoid_norm_loss, true},
    LossEntry{PreferenceLoss::sft, sft_loss, false},
    LossEntry{PreferenceLoss::orpo, orpo_loss, false},
    LossEntry{PreferenceLoss::simpo, simpo_loss, false},
    LossEntry{PreferenceLoss::cpo, cpo_loss, false},
    LossEntry{PreferenceLoss::kto, nullptr, true},
};

const LossEntry& find(PreferenceLoss loss) {
  const auto found = std::ranges::find(entries, loss, &LossEntry::name);
  LLMTRAIN_CHECK(found != entries.end(), "every loss has an entry");
  return *found;
}

}  // namespace

PairLoss preference_loss(PreferenceLoss loss, const DpoConfig& config, const PreferencePair& pair) {
  const LossEntry& entry = find(loss);
  LLMTRAIN_CHECK(entry.loss != nullptr, "this loss is not a function of one pair");
  const Dual result = entry.loss(Terms(config, pair));
  return {result.value, result.chosen, result.rejected};
}

bool is_sorted(PreferenceLoss loss) { return loss == PreferenceLoss::aot || loss == PreferenceLoss::aot_unpaired; }

bool uses_reference(PreferenceLoss loss) { return find(loss).uses_reference; }

bool DpoConfig::uses_reference() const {
  if (reference == "none") return false;
  return std::ranges::any_of(losses(), [](PreferenceLoss one) { return llmtrain::uses_reference(one); });
}

}  // namespace llmtrain
