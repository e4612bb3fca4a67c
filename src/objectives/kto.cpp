// Kahneman-Tversky optimisation (Ethayarajh et al. 2024, arXiv:2402.01306, eq. 7) over documents with a label.

#include <algorithm>
#include <cmath>

#include "core/error.hpp"
#include "objectives/document_objective.hpp"

namespace llmtrain {

namespace {

/// Metrics under TRL's names. Sums over chosen and rejected documents are divided by their numbers.
enum Metric : size_t {
  total,
  kl,
  chosen_count,
  rejected_count,
  chosen_reward,
  rejected_reward,
  chosen_logp,
  rejected_logp,
  length
};

class Kto : public DocumentObjective {
 public:
  explicit Kto(const DpoConfig& config) : config_(config) {
    add_metric({"loss", 1});
    add_metric({"kl", 1, "kl"});
    add_metric({"share/chosen", 1});
    add_metric({"share/rejected", 1});
    add_metric({"rewards/chosen", 1, "chosen", chosen_count});
    add_metric({"rewards/rejected", 1, "rejected", rejected_count});
    add_metric({"logps/chosen", 1, {}, chosen_count});
    add_metric({"logps/rejected", 1, {}, rejected_count});
    add_length_and_entropy(1);
  }

  ObjectiveNeeds needs() const override {
    return {.statistics_first = true,
            .shows_entropy = true,
            .documents = true,
            .reference = config_.uses_reference(),
            .step_statistics = true,
            .mismatched = true};
  }

  /// The divergence from the reference, estimated on prompts with completions of others: their mean log-ratio, at
  /// least 0. It has no derivative.
  void begin_step(const StepDocuments& step) override {
    double sum = 0;
    for (size_t d = 0; d < step.mismatched_logp.size(); ++d)
      sum += step.mismatched_logp[d] - step.mismatched_reference[d];
    divergence_ = std::max(sum / static_cast<double>(std::max<size_t>(step.mismatched_logp.size(), 1)), 0.0);
  }

 protected:
  void evaluate(const DocumentColumns& documents, std::span<const double> sums, DocumentResults& results) override {
    LLMTRAIN_CHECK(documents.values.size() == sums.size(), "a label for every document");
    for (size_t d = 0; d < sums.size(); ++d) {
      const bool chosen = documents.values[d] > 0;
      const double reference = documents.references.empty() ? 0 : documents.references[d];
      const double ratio = sums[d] - reference, sign = chosen ? 1 : -1;
      const double weight = chosen ? config_.desirable_weight : config_.undesirable_weight;
      const double value = 1 / (1 + std::exp(-sign * config_.beta * (ratio - divergence_)));
      results.factors[d] = static_cast<float>(-weight * sign * config_.beta * value * (1 - value));
      add(results, total, weight * (1 - value));
      add(results, kl, divergence_);
      add(results, chosen ? chosen_count : rejected_count, 1);
      add(results, chosen ? chosen_reward : rejected_reward, config_.beta * ratio);
      add(results, chosen ? chosen_logp : rejected_logp, sums[d]);
      add(results, length, static_cast<double>(documents.targets[d]));
    }
  }

 private:
  static void add(DocumentResults& results, size_t metric, double value) {
    results.values[metric].push_back(static_cast<float>(value));
  }

  DpoConfig config_;
  double divergence_ = 0;
};

}  // namespace

std::unique_ptr<Objective> make_kto(const DpoConfig& config) { return std::make_unique<Kto>(config); }

}  // namespace llmtrain
