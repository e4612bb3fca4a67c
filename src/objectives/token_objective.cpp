#include "objectives/token_objective.hpp"

#include <algorithm>
#include <cmath>

#include "core/error.hpp"
#include "kernels/reduce.hpp"

namespace llmtrain {

std::vector<size_t> trained_rows(const TokenColumns& tokens, size_t segment) {
  std::vector<size_t> rows;
  const size_t end = static_cast<size_t>(tokens.segments[segment + 1]);
  for (size_t row = static_cast<size_t>(tokens.segments[segment]); row < end; ++row) {
    if (tokens.weights[row] > 0) rows.push_back(row);
  }
  return rows;
}

ClippedObjective clipped_objective(double log_ratio, double advantage, double low, double high, double delta) {
  const double ratio = std::exp(log_ratio), clipped = std::clamp(ratio, 1 - low, 1 + high);
  if (advantage == 0) return {0, 0, ratio};  // whatever the ratio, which may be infinite
  const bool bounded = delta > 0 && ratio > delta;
  const double free = (bounded ? delta : ratio) * advantage, held = clipped * advantage;
  if (held < free) return {held, 0, ratio};
  return {free, bounded ? 0 : free, ratio};
}

void TokenObjective::plan(Arena& arena, int64_t max_rows, int64_t /*max_segments*/) {
  arena.add(device_values_, MemoryCategory::activations, "tokens.values", DType::f32, {max_rows});
}

void TokenObjective::start_results(const TokenColumns& tokens, TokenResults& results) const {
  results.logp.assign(tokens.logp.size(), 0.0F);
  results.entropy.assign(tokens.entropy.size(), 0.0F);
  results.value.assign(tokens.value.size(), 0.0F);
  results.values.resize(metrics_.size());
  for (std::vector<float>& values : results.values) values.clear();
}

void TokenObjective::evaluate_batch(const Batch& batch, const TokenStatistics& statistics, const Tensor& scale,
                                    Stream& stream) {
  LLMTRAIN_CHECK(batch.rollout != nullptr, "the batch is not part of a rollout");
  copies_.fetch(logp_, statistics.logp, batch.tokens, stream);
  copies_.fetch(entropy_, needs().entropy ? statistics.entropy : Tensor{}, batch.tokens, stream);
  copies_.fetch(value_, needs().value ? statistics.value : Tensor{}, batch.tokens, stream);
  copies_.fetch(weights_, batch.loss_weights, batch.tokens, stream);
  copies_.fetch(segments_, batch.segments, batch.segment_count + 1, stream);
  copies_.fetch(scale_, scale, 1, stream);
  copies_.finish(stream);
  const TokenColumns tokens{logp_, entropy_, value_, weights_, segments_, batch.rollout};
  start_results(tokens, results_);
  evaluate(tokens, results_);
}

void TokenObjective::upload_cotangents(const TokenCotangents& out, Stream& stream) {
  const auto upload = [&](const Tensor& device, std::vector<float>& host) {
    if (device.empty()) return;
    LLMTRAIN_CHECK(std::ssize(host) == device.numel(), "a cotangent without its statistic");
    if (!scale_.empty()) std::ranges::for_each(host, [&](float& one) { one *= scale_.front(); });
    copies_.upload(device, host.data(), stream);
  };
  upload(out.logp, results_.logp);
  upload(out.entropy, results_.entropy);
  upload(out.value, results_.value);
}

void TokenObjective::upload_sums(const Tensor& sums, Stream& stream) {
  for (size_t metric = 0; metric < metrics_.size(); ++metric) {
    const std::vector<float>& values = results_.values[metric];
    if (values.empty()) continue;
    const Tensor used = device_values_.rows(0, std::ssize(values));
    copies_.upload(used, values.data(), stream);
    sum_of_products(sums.rows(static_cast<int64_t>(metric), 1), used, {}, stream);
  }
}

void TokenObjective::cotangents(const Batch& batch, const TokenStatistics& statistics, const TokenCotangents& out,
                                const Tensor& scale, Stream& stream) {
  evaluate_batch(batch, statistics, scale, stream);
  upload_cotangents(out, stream);
}

void TokenObjective::add_sums(const Batch& batch, const TokenStatistics& statistics, const Tensor& sums,
                              Stream& stream) {
  evaluate_batch(batch, statistics, {}, stream);
  upload_sums(sums, stream);
}

void TokenObjective::cotangents_and_sums(const Batch& batch, const TokenStatistics& statistics,
                                         const TokenCotangents& out, const Tensor& scale, const Tensor& sums,
                                         Stream& stream) {
  evaluate_batch(batch, statistics, scale, stream);
  upload_cotangents(out, stream);
  upload_sums(sums, stream);
}

}  // namespace llmtrain
