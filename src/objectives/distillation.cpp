#include "kernels/objective.hpp"
#include "kernels/reduce.hpp"
#include "objectives/objective.hpp"

namespace llmtrain {

namespace {

/// The weights of rows are the cotangents of logp; the head's loss of distributions does the rest.
class Distillation : public Objective {
 public:
  explicit Distillation(bool leaves_out) {
    metrics_ = {{"loss"}, {"kl", 1, "kl"}, {"cross_entropy", -1, "cross-entropy"}, {"agreement", 1, "agreement"}};
    if (leaves_out) metrics_.push_back({"left_out", 1, "left out"});
  }
  ObjectiveNeeds needs() const override { return {.teacher = true}; }
  std::span<const MetricSpec> metrics() const override { return metrics_; }
  int64_t count(const StepPlan& plan) const override { return plan.trained_tokens; }
  void cotangents(const Batch& batch, const TokenStatistics& /*statistics*/, const TokenCotangents& out,
                  const Tensor& scale, Stream& stream) override {
    cross_entropy_cotangents(out.logp, batch.loss_weights, scale, stream);
  }
  void add_sums(const Batch& batch, const TokenStatistics& statistics, const Tensor& sums, Stream& stream) override {
    const Tensor* values[] = {&statistics.distilled, &statistics.divergence, &statistics.logp, &statistics.agreement,
                              &statistics.left_out};
    for (size_t metric = 0; metric < metrics_.size(); ++metric) {
      sum_of_products(sums.rows(static_cast<int64_t>(metric), 1), *values[metric], batch.loss_weights, stream);
    }
  }

 private:
  std::vector<MetricSpec> metrics_;
};

}  // namespace

std::unique_ptr<Objective> make_distillation(const DistillConfig& config) {
  return std::make_unique<Distillation>(config.top_k > 0);
}

}  // namespace llmtrain
