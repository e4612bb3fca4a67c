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

/// Cross-entropy with terms beside it. Their derivatives are known before the head has run, so that it runs once.
class RegularizedCrossEntropy : public Objective {
 public:
  explicit RegularizedCrossEntropy(const ObjectiveConfig& config)
      : terms_{static_cast<float>(config.z_loss), static_cast<float>(config.label_smoothing),
               static_cast<float>(config.entropy_bonus)} {
    metrics_ = {{"loss"}, {"cross_entropy", -1, "cross-entropy"}};
    if (terms_.z_loss > 0) metrics_.push_back({"z_loss"});
    if (terms_.label_smoothing > 0) metrics_.push_back({"label_smoothing"});
    if (terms_.entropy_bonus > 0) metrics_.push_back({"entropy", 1, "entropy"});
  }
  ObjectiveNeeds needs() const override {
    return {
        .entropy = terms_.entropy_bonus > 0, .uniform = terms_.label_smoothing > 0, .lse_squared = terms_.z_loss > 0};
  }
  std::span<const MetricSpec> metrics() const override { return metrics_; }
  int64_t count(const StepPlan& plan) const override { return plan.trained_tokens; }
  void plan(Arena& arena, int64_t max_rows, int64_t /*max_segments*/) override {
    const auto add = [&](Tensor& tensor, const char* name, bool used) {
      if (used) arena.add(tensor, MemoryCategory::activations, name, DType::f32, {max_rows});
    };
    add(losses_.loss, "objective.loss", true);
    add(losses_.z_loss, "objective.z_loss", terms_.z_loss > 0);
    add(losses_.label_smoothing, "objective.label_smoothing", terms_.label_smoothing > 0);
  }
  void cotangents(const Batch& batch, const TokenStatistics& /*statistics*/, const TokenCotangents& out,
                  const Tensor& scale, Stream& stream) override {
    auxiliary_cotangents(out, terms_, batch.loss_weights, scale, stream);
  }
  void add_sums(const Batch& batch, const TokenStatistics& statistics, const Tensor& sums, Stream& stream) override {
    const auto first = [&](const Tensor& t) { return t.empty() ? t : t.rows(0, batch.tokens); };
    const TokenLosses losses{first(losses_.loss), first(losses_.z_loss), first(losses_.label_smoothing)};
    auxiliary_losses(losses, terms_, statistics, stream);
    int64_t metric = 0;
    const auto add = [&](const Tensor& values) {
      if (!values.empty()) sum_of_products(sums.rows(metric++, 1), values, batch.loss_weights, stream);
    };
    add(losses.loss);
    add(statistics.logp);
    add(losses.z_loss);
    add(losses.label_smoothing);
    if (terms_.entropy_bonus > 0) add(statistics.entropy);
  }

 private:
  AuxiliaryTerms terms_;
  std::vector<MetricSpec> metrics_;
  TokenLosses losses_;  ///< fp32 [rows]
};

}  // namespace

std::unique_ptr<Objective> make_cross_entropy(const ObjectiveConfig& config) {
  if (config.has_terms()) return std::make_unique<RegularizedCrossEntropy>(config);
  return std::make_unique<CrossEntropy>();
}

}  // namespace llmtrain
