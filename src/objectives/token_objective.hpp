#pragma once
// Objectives over tokens of a rollout: the host computes a loss, and its derivatives, from statistics of each row of a
// micro-batch and from the columns of the rollout.

#include <cstdint>
#include <span>
#include <vector>

#include "device/pinned_copies.hpp"
#include "objectives/objective.hpp"

namespace llmtrain {

/// Rows of a micro-batch in host memory. A row is trained if its weight is above 0; a sequence is a segment that has
/// such rows.
struct TokenColumns {
  std::span<const float> logp;        ///< nats [N]
  std::span<const float> entropy;     ///< nats [N]; empty unless needed
  std::span<const float> value;       ///< [N]; empty unless needed
  std::span<const float> weights;     ///< loss weights [N]
  std::span<const int32_t> segments;  ///< [S + 1]: segment s is rows [segments[s], segments[s + 1])
  const RolloutColumns* rollout;
};

/// Loss of a micro-batch as its rows see it.
struct TokenResults {
  std::vector<float> logp, entropy, value;  ///< derivatives of the loss [N], 0 at first; as the columns, may be empty
  std::vector<std::vector<float>> values;   ///< for each metric its values, which are added to its sum; at most N each
};

class TokenObjective : public Objective {
 public:
  std::span<const MetricSpec> metrics() const override { return metrics_; }
  void plan(Arena& arena, int64_t max_rows, int64_t max_segments) override;
  void cotangents(const Batch& batch, const TokenStatistics& statistics, const TokenCotangents& out,
                  const Tensor& scale, Stream& stream) override;
  void add_sums(const Batch& batch, const TokenStatistics& statistics, const Tensor& sums, Stream& stream) override;
  void cotangents_and_sums(const Batch& batch, const TokenStatistics& statistics, const TokenCotangents& out,
                           const Tensor& scale, const Tensor& sums, Stream& stream) override;
  /// Fills `results`, which start_results() has made.
  virtual void evaluate(const TokenColumns& tokens, TokenResults& results) const = 0;
  /// Allocates the results of these rows, and clears them.
  void start_results(const TokenColumns& tokens, TokenResults& results) const;

 protected:
  /// Returns the number of the metric.
  size_t add_metric(const MetricSpec& metric) {
    metrics_.push_back(metric);
    return metrics_.size() - 1;
  }

 private:
  void evaluate_batch(const Batch& batch, const TokenStatistics& statistics, const Tensor& scale, Stream& stream);
  /// Copies the results to the device.
  void upload_cotangents(const TokenCotangents& out, Stream& stream);
  void upload_sums(const Tensor& sums, Stream& stream);

  std::vector<MetricSpec> metrics_;
  Tensor device_values_;  // fp32 [rows], of one metric
  std::vector<float> logp_, entropy_, value_, weights_;
  std::vector<float> scale_;  // one factor of all derivatives, or none
  std::vector<int32_t> segments_;
  TokenResults results_;
  PinnedCopies copies_;
};

/// Numbers of the trained rows of a segment, in order.
std::vector<size_t> trained_rows(const TokenColumns& tokens, size_t segment);

/// The clipped objective of a policy (Schulman et al. 2017, arXiv:1707.06347, eq. 7): min(ratio A, clip(ratio) A).
struct ClippedObjective {
  double value = 0;
  double slope = 0;  ///< with respect to the logarithm of the ratio
  double ratio = 1;
};
/// The ratio is clipped to [1 - low, 1 + high]; `delta` > 0 bounds it from above where that clip is not the smaller
/// one (two-sided clip, Team Intellect 2025, arXiv:2505.07291).
ClippedObjective clipped_objective(double log_ratio, double advantage, double low, double high, double delta = 0);

}  // namespace llmtrain
