#include <array>

#include "kernels/objective.hpp"
#include "kernels/reduce.hpp"
#include "objectives/objective.hpp"

namespace llmtrain {

namespace {

class CrossEntropy : public Objective {
 public:
  std::span<const MetricSpec> metrics() const override {
    static constexpr std::array specs{MetricSpec{"loss", -1}};
    return specs;
  }
  int64_t count(const StepPlan& plan) const override { return plan.trained_tokens; }
  void cotangents(const Batch& batch, const TokenStatistics& /*statistics*/, const TokenCotangents& out,
                  const Tensor& scale, Stream& stream) override {
    cross_entropy_cotangents(out.logp, batch.loss_weights, scale, stream);
  }
  void add_sums(const Batch& batch, const TokenStatistics& statistics, const Tensor& sums, Stream& stream) override {
    sum_of_products(sums.rows(0, 1), statistics.logp, batch.loss_weights, stream);
  }
};

}  // namespace

std::unique_ptr<Objective> make_cross_entropy() { return std::make_unique<CrossEntropy>(); }

}  // namespace llmtrain
