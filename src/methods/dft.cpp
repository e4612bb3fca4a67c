// Dynamic fine-tuning (Wu et al. 2025, arXiv:2508.05629): supervised fine-tuning in which the probability of each
// token, as a constant, weights its loss and so its gradient.

#include "kernels/objective.hpp"
#include "kernels/reduce.hpp"
#include "methods/method.hpp"

namespace llmtrain {

namespace {

/// The sum over trained tokens of -p log p, where p is a constant.
class DynamicCrossEntropy : public Objective {
 public:
  ObjectiveNeeds needs() const override { return {.statistics_first = true}; }
  std::span<const MetricSpec> metrics() const override {
    static constexpr std::array specs{MetricSpec{"loss", -1}, MetricSpec{"cross_entropy", -1, "cross-entropy"}};
    return specs;
  }
  int64_t count(const StepPlan& plan) const override { return plan.trained_tokens; }
  void plan(Arena& arena, int64_t max_rows, int64_t /*max_segments*/) override {
    arena.add(weights_, MemoryCategory::activations, "objective.weights", DType::f32, {max_rows});
  }
  void cotangents(const Batch& batch, const TokenStatistics& statistics, const TokenCotangents& out,
                  const Tensor& scale, Stream& stream) override {
    cross_entropy_cotangents(out.logp, weighted(batch, statistics, stream), scale, stream);
  }
  void add_sums(const Batch& batch, const TokenStatistics& statistics, const Tensor& sums, Stream& stream) override {
    sum_of_products(sums.rows(0, 1), statistics.logp, weighted(batch, statistics, stream), stream);
    sum_of_products(sums.rows(1, 1), statistics.logp, batch.loss_weights, stream);
  }

 private:
  /// The loss weights times the tokens' probabilities, fp32 [N].
  Tensor weighted(const Batch& batch, const TokenStatistics& statistics, Stream& stream) const {
    const Tensor weights = weights_.rows(0, batch.tokens);
    probability_weights(weights, statistics.logp, batch.loss_weights, stream);
    return weights;
  }

  Tensor weights_;  ///< fp32 [rows]
};

class DynamicFinetuning : public Method {
 public:
  DynamicFinetuning() : Method(Task::dft) {}

  std::unique_ptr<Objective> objective(const Config& /*config*/, const Dataset& /*data*/) const override {
    return std::make_unique<DynamicCrossEntropy>();
  }
  /// The loss of a token that has become improbable is small: evaluations measure the cross-entropy.
  std::unique_ptr<Objective> evaluator(const Config& /*config*/) const override { return make_cross_entropy(); }
};

}  // namespace

const TaskRules& dft_task() {
  static const DynamicFinetuning method;
  return method;
}

}  // namespace llmtrain
