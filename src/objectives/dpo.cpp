#include <algorithm>
#include <functional>
#include <list>
#include <numeric>
#include <string>

#include "core/error.hpp"
#include "objectives/document_objective.hpp"
#include "objectives/preference_loss.hpp"

namespace llmtrain {

namespace {

/// Metrics after the loss, under TRL's names; losses of the list follow where there are several.
enum Metric : size_t {
  total,
  chosen_reward,
  rejected_reward,
  margin,
  accuracy,
  chosen_logp,
  rejected_logp,
  kl,
  length,
  entropy,
  chosen_length,
  rejected_length,
  chosen_logits,
  rejected_logits,
  parts
};

class Dpo : public DocumentObjective {
 public:
  explicit Dpo(const DpoConfig& config)
      : config_(config), losses_(config.losses()), uses_reference_(config.uses_reference()) {
    weights_ = config.loss_weights;
    weights_.resize(losses_.size(), 1);
    add_metric({"loss", 1});
    add_metric({"rewards/chosen", 1});
    add_metric({"rewards/rejected", 1});
    add_metric({"rewards/margins", 1, "margin"});
    add_metric({"rewards/accuracies", 1, "accuracy"});
    add_metric({"logps/chosen", 1});
    add_metric({"logps/rejected", 1});
    add_metric({"kl", 1});
    add_length_and_entropy(0.5);
    add_metric({"completions/chosen_mean_length", 1});
    add_metric({"completions/rejected_mean_length", 1});
    add_metric({"logits/chosen", 1, {}, chosen_length});
    add_metric({"logits/rejected", 1, {}, rejected_length});
    if (losses_.size() == 1) return;
    for (const std::string& name : config.loss) add_metric({names_.emplace_back("losses/" + name), 1});
  }

  ObjectiveNeeds needs() const override {
    return {.statistics_first = true,
            .shows_entropy = true,
            .mean_logits = true,
            .documents = true,
            .reference = uses_reference_,
            .step_statistics = std::ranges::any_of(losses_, is_sorted)};
  }
  void begin_step(const StepDocuments& step) override;

 protected:
  void evaluate(const DocumentColumns& documents, std::span<const double> sums, DocumentResults& results) override {
    LLMTRAIN_CHECK(sums.size() % 2 == 0, "pairs have two documents");
    LLMTRAIN_CHECK(!uses_reference_ || documents.references.size() == sums.size(), "a reference for every document");
    const auto score = [&](size_t d) {
      return DocumentScore{sums[d], uses_reference_ ? documents.references[d] : 0, documents.targets[d]};
    };
    for (size_t d = 0; d < sums.size(); d += 2) {
      PreferencePair pair{score(d), score(d + 1), documents.mean_first_targets};
      PairLoss sum;
      const size_t number = (static_cast<size_t>(documents.first_in_step) + d) / 2;
      for (size_t l = 0; l < losses_.size(); ++l) {
        if (losses_[l] == PreferenceLoss::aot) pair.counterpart = reference_differences_[number];
        if (losses_[l] == PreferenceLoss::aot_unpaired) {
          pair.counterpart = rejected_ratios_[number];
          pair.rejected_counterpart = chosen_ratios_[number];
        }
        const PairLoss one = preference_loss(losses_[l], config_, pair);
        sum.loss += weights_[l] * one.loss;
        sum.chosen += weights_[l] * one.chosen;
        sum.rejected += weights_[l] * one.rejected;
        if (losses_.size() > 1) add(results, parts + l, one.loss);
      }
      results.factors[d] = static_cast<float>(sum.chosen);
      results.factors[d + 1] = static_cast<float>(sum.rejected);
      add(results, total, sum.loss);
      add_metrics(results, pair);
      if (logit_sums().empty()) continue;
      add(results, chosen_logits, logit_sums()[d]);
      add(results, rejected_logits, logit_sums()[d + 1]);
    }
  }

 private:
  static void add(DocumentResults& results, size_t metric, double value) {
    results.values[metric].push_back(static_cast<float>(value));
  }
  void add_metrics(DocumentResults& results, const PreferencePair& pair) const {
    const double chosen = pair.chosen.logp - pair.chosen.reference;
    const double rejected = pair.rejected.logp - pair.rejected.reference;
    add(results, chosen_reward, config_.beta * chosen);
    add(results, rejected_reward, config_.beta * rejected);
    add(results, margin, config_.beta * (chosen - rejected));
    add(results, accuracy, chosen > rejected ? 1 : 0);
    add(results, chosen_logp, pair.chosen.logp);
    add(results, rejected_logp, pair.rejected.logp);
    add(results, kl, (chosen + rejected) / 2);
    add(results, length, static_cast<double>(pair.chosen.targets + pair.rejected.targets));
    add(results, chosen_length, static_cast<double>(pair.chosen.targets));
    add(results, rejected_length, static_cast<double>(pair.rejected.targets));
  }

  // For each pair of the step the values of equal rank, if a loss compares ranks.
  std::vector<double> reference_differences_, rejected_ratios_, chosen_ratios_;
  DpoConfig config_;
  std::vector<PreferenceLoss> losses_;
  std::vector<double> weights_;
  bool uses_reference_;
  std::list<std::string> names_;  // of metrics
};

/// For each element of `values` the element of `others` of the same rank; equal values are in the order of the step.
std::vector<double> of_equal_rank(const std::vector<double>& values, std::vector<double> others) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::less(), [&](size_t i) { return values[i]; });
  std::ranges::sort(others);
  std::vector<double> found(values.size());
  for (size_t rank = 0; rank < order.size(); ++rank) found[order[rank]] = others[rank];
  return found;
}

void Dpo::begin_step(const StepDocuments& step) {
  std::vector<double> differences, reference_differences, chosen, rejected;
  for (size_t d = 0; d < step.logp.size(); d += 2) {
    differences.push_back(step.logp[d] - step.logp[d + 1]);
    reference_differences.push_back(step.reference[d] - step.reference[d + 1]);
    chosen.push_back(step.logp[d] - step.reference[d]);
    rejected.push_back(step.logp[d + 1] - step.reference[d + 1]);
  }
  reference_differences_ = of_equal_rank(differences, reference_differences);
  rejected_ratios_ = of_equal_rank(chosen, rejected);
  chosen_ratios_ = of_equal_rank(rejected, chosen);
}

}  // namespace

std::unique_ptr<Objective> make_dpo(const DpoConfig& config) { return std::make_unique<Dpo>(config); }

}  // namespace llmtrain
