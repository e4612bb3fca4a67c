#include "objectives/document_objective.hpp"

#include "core/error.hpp"
#include "kernels/documents.hpp"
#include "kernels/reduce.hpp"

namespace llmtrain {

void document_sums(std::vector<double>& out, const Batch& batch, const Tensor& statistic, const Tensor& sums,
                   Stream& stream) {
  LLMTRAIN_CHECK(batch.documents != nullptr, "a batch without documents");
  segment_sums(out, std::ssize(batch.documents->ids), batch, statistic, sums, stream);
}

void segment_sums(std::vector<double>& out, int64_t segments, const Batch& batch, const Tensor& statistic,
                  const Tensor& sums, Stream& stream) {
  out.resize(static_cast<size_t>(segments));
  const Tensor used = sums.rows(0, segments);
  sum_documents(used, statistic, batch.loss_weights, batch.segments, stream);
  copy_to_host(out.data(), used.data, used.bytes(), stream);
  stream.synchronize();
}

void DocumentObjective::plan(Arena& arena, int64_t /*max_rows*/, int64_t max_segments) {
  constexpr MemoryCategory category = MemoryCategory::activations;
  arena.add(device_sums_, category, "documents.sums", DType::f64, {max_segments});
  arena.add(device_factors_, category, "documents.factors", DType::f32, {max_segments});
  arena.add(device_values_, category, "documents.values", DType::f32, {std::ssize(metrics_) * max_segments});
}

void DocumentObjective::add_length_and_entropy(double factor) {
  const auto length = static_cast<int>(metrics_.size());
  add_metric({"completions/mean_length", factor});
  entropy_ = std::ssize(metrics_);
  add_metric({"entropy", 1, {}, length});
}

void DocumentObjective::evaluate(const Batch& batch, const TokenStatistics& statistics, Stream& stream) {
  LLMTRAIN_CHECK(batch.documents != nullptr, "a batch without documents");
  const auto fetch_sums = [&](std::vector<double>& out, const Tensor& statistic) {
    const int64_t count = statistic.empty() ? 0 : std::ssize(batch.documents->ids);
    const Tensor used = device_sums_.rows(0, count);
    if (count > 0) sum_documents(used, statistic, batch.loss_weights, batch.segments, stream);
    copies_.fetch(out, used, count, stream);
  };
  fetch_sums(sums_, statistics.logp);
  fetch_sums(logit_sums_, statistics.mean_logit);
  copies_.finish(stream);
  results_.factors.assign(sums_.size(), 0.0F);
  results_.values.resize(metrics_.size());
  for (std::vector<float>& values : results_.values) values.clear();
  evaluate(*batch.documents, sums_, results_);
}

void DocumentObjective::cotangents(const Batch& batch, const TokenStatistics& statistics, const TokenCotangents& out,
                                   const Tensor& scale, Stream& stream) {
  evaluate(batch, statistics, stream);
  const Tensor factors = device_factors_.rows(0, std::ssize(results_.factors));
  copies_.upload(factors, results_.factors.data(), stream);
  spread_documents(out.logp, factors, batch.loss_weights, batch.segments, scale, stream);
}

void DocumentObjective::add_sums(const Batch& batch, const TokenStatistics& statistics, const Tensor& sums,
                                 Stream& stream) {
  evaluate(batch, statistics, stream);
  int64_t begin = 0;
  for (size_t metric = 0; metric < metrics_.size(); ++metric) {
    const std::vector<float>& values = results_.values[metric];
    if (values.empty()) continue;
    const Tensor row = device_values_.rows(begin, std::ssize(values));
    begin += std::ssize(values);
    copies_.upload(row, values.data(), stream);
    sum_of_products(sums.rows(static_cast<int64_t>(metric), 1), row, {}, stream);
  }
  if (entropy_) sum_of_products(sums.rows(*entropy_, 1), statistics.entropy, batch.loss_weights, stream);
}

}  // namespace llmtrain
