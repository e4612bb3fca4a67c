#pragma once
// Objectives over documents: the host computes a loss from one number for each document of a micro-batch, the sum of a
// statistic over its trained targets; the rest is one factor for each document.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "device/pinned_copies.hpp"
#include "objectives/objective.hpp"

namespace llmtrain {

/// Loss of a micro-batch as its documents and samples see it.
struct DocumentResults {
  std::vector<float> factors;              ///< derivative of the loss with respect to each document's sum
  std::vector<std::vector<float>> values;  ///< for each metric its values, which are added to its sum
};

class DocumentObjective : public Objective {
 public:
  std::span<const MetricSpec> metrics() const override { return metrics_; }
  int64_t count(const StepPlan& plan) const override { return static_cast<int64_t>(plan.samples.size()); }
  void plan(Arena& arena, int64_t max_rows, int64_t max_segments) override;
  void cotangents(const Batch& batch, const TokenStatistics& statistics, const TokenCotangents& out,
                  const Tensor& scale, Stream& stream) override;
  void add_sums(const Batch& batch, const TokenStatistics& statistics, const Tensor& sums, Stream& stream) override;

 protected:
  /// `sums`: one for each document. Fills `results`, whose factors and metrics are allocated.
  virtual void evaluate(const DocumentColumns& documents, std::span<const double> sums, DocumentResults& results) = 0;
  /// Sums of the mean logits over each document's targets; empty if they were not computed (needs().mean_logits).
  std::span<const double> logit_sums() const { return logit_sums_; }
  void add_metric(const MetricSpec& metric) { metrics_.push_back(metric); }
  /// Adds the metrics completions/mean_length, whose values are numbers of targets and whose factor is given, and
  /// entropy, the mean over these targets, which the base computes (needs().shows_entropy).
  void add_length_and_entropy(double factor);

 private:
  void evaluate(const Batch& batch, const TokenStatistics& statistics, Stream& stream);

  std::vector<MetricSpec> metrics_;
  std::optional<int64_t> entropy_;  // number of the metric
  Tensor device_sums_;              // fp64 [documents]
  Tensor device_factors_;           // fp32 [documents]
  Tensor device_values_;            // fp32 [metrics * documents]
  std::vector<double> sums_, logit_sums_;
  DocumentResults results_;
  PinnedCopies copies_;
};

/// Sums of a statistic over each document's trained targets, in nats for log-probabilities. `sums` is device memory for
/// them, fp64. Waits for the stream.
void document_sums(std::vector<double>& out, const Batch& batch, const Tensor& statistic, const Tensor& sums,
                   Stream& stream);
/// The same over the first `segments` segments of any batch.
void segment_sums(std::vector<double>& out, int64_t segments, const Batch& batch, const Tensor& statistic,
                  const Tensor& sums, Stream& stream);

}  // namespace llmtrain
