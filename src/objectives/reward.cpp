// The loss of a reward model over pairs (Bradley and Terry 1952; Ouyang et al. 2022, arXiv:2203.02155, eq. 1), with a
// margin (Touvron et al. 2023, arXiv:2307.09288, eq. 2) and centring (Eisenstein et al. 2023, arXiv:2312.09244).

#include <algorithm>
#include <cmath>

#include "core/error.hpp"
#include "objectives/document_objective.hpp"

namespace llmtrain {

namespace {

/// Metrics under TRL's names.
enum RewardMetric : size_t { loss, accuracy, margin, mean_reward };

class Reward : public DocumentObjective {
 public:
  explicit Reward(const RewardModelConfig& config) : centering_(config.center_coefficient) {
    add_metric({"loss", 1});
    add_metric({"accuracy", 1, "accuracy"});
    add_metric({"margin", 1, "margin"});
    add_metric({"mean_reward", 1});
  }

  ObjectiveNeeds needs() const override { return {.statistics_first = true, .documents = true}; }

 protected:
  void evaluate(const DocumentColumns& documents, std::span<const double> sums, DocumentResults& results) override {
    LLMTRAIN_CHECK(sums.size() % 2 == 0, "pairs have two documents");
    for (size_t d = 0; d < sums.size(); d += 2) {
      const double difference = sums[d] - sums[d + 1], sum = sums[d] + sums[d + 1];
      const double above = difference - (documents.values.empty() ? 0 : static_cast<double>(documents.values[d]));
      const double slope = -1 / (1 + std::exp(above)), pull = 2 * centering_ * sum;
      results.factors[d] = static_cast<float>(slope + pull);
      results.factors[d + 1] = static_cast<float>(pull - slope);
      // -log sigmoid(above)
      const double misfit = std::max(-above, 0.0) + std::log1p(std::exp(-std::abs(above)));
      add(results, loss, misfit + centering_ * sum * sum);
      add(results, accuracy, difference > 0 ? 1 : 0);
      add(results, margin, difference);
      add(results, mean_reward, sum / 2);
    }
  }

 private:
  static void add(DocumentResults& results, size_t metric, double value) {
    results.values[metric].push_back(static_cast<float>(value));
  }

  double centering_;
};

}  // namespace

std::unique_ptr<Objective> make_reward(const RewardModelConfig& config) { return std::make_unique<Reward>(config); }

}  // namespace llmtrain
