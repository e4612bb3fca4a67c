#include "evaluation/evaluate.hpp"

#include <algorithm>
#include <span>
#include <string>

#include "core/activity.hpp"
#include "core/error.hpp"
#include "core/progress.hpp"
#include "kernels/step_decision.hpp"

namespace llmtrain {

namespace {

int64_t count_correct(const HostBatch& batch, const Tensor& argmax, Stream& stream) {
  if (argmax.empty()) return 0;
  std::vector<int32_t> found(batch.targets.size());
  copy_to_host(found.data(), argmax.data, static_cast<int64_t>(found.size() * sizeof(int32_t)), stream);
  stream.synchronize();
  int64_t correct = 0;
  for (size_t i = 0; i < found.size(); ++i) correct += found[i] == batch.targets[i] ? 1 : 0;
  return correct;
}

}  // namespace

int64_t first_steps(const EvaluationConfig& config, const DataStream& data) {
  const int64_t all = data.steps_per_epoch();
  return config.batches > 0 ? std::min(all, config.batches) : all;
}

int64_t evaluations_from(const EvaluationConfig& config, int64_t step, int64_t total) {
  const int64_t every = config.every_steps, first = std::max<int64_t>(step, 1);
  const int64_t inside = every > 0 ? total / every - (first - 1) / every : 0;
  const bool last_is_inside = every > 0 && total % every == 0;
  return inside + (config.at_end && !last_is_inside ? 1 : 0);
}

void require_trained_tokens(const DataStream& data, int64_t steps) {
  for (int64_t step = 0; step < steps; ++step) {
    if (data.plan(step).trained_tokens > 0) return;
  }
  throw UserError(ExitCode::bad_content,
                  "evaluation.batches: the first " + std::to_string(steps) +
                      " batches of data.validation have no target (every label is -100, or the mask is 0), so that the "
                      "loss is undefined. Raise the key, or set it to 0 for all batches");
}

std::optional<EvaluationResult> evaluate(Model& model, Context& ctx, Objective& objective, const DataStream& data,
                                         int64_t steps, const EvaluationBuffers& buffers, const Mesh& mesh,
                                         const Interrupted& interrupted, const ScoredBatch& scored) {
  EvaluationResult result;
  const Tensor sums = buffers.sums.rows(0, std::ssize(objective.metrics()));
  fill_zero(sums.data, sums.bytes(), ctx.stream);
  std::ranges::fill(objective.counts(), 0);
  ctx.role = objective.product_role();
  HostBatch host;
  std::vector<MicroBatchPlan> pending;  // consecutive micro-batches, one per data rank
  const auto run_pending = [&] {        // returns true if all have run
    for (size_t first = 0; first < pending.size(); first += static_cast<size_t>(mesh.data_ranks())) {
      const size_t mine = first + static_cast<size_t>(mesh.data_rank());
      if (interrupted()) return false;
      report_progress();
      if (mine >= pending.size()) {
        if (buffers.reference != nullptr) buffers.reference->run_idle(ctx);
        score(model, ctx, nullptr, {});
        continue;
      }
      data.load(pending[mine], host);
      Batch batch = buffers.batch.upload(host, ctx.stream);
      const TokenStatistics statistics = buffers.statistics.rows(0, batch.tokens);
      if (buffers.reference != nullptr) {
        buffers.reference->score(ctx, batch, statistics.logp, buffers.documents, host.documents, DataPart::validation);
        batch.documents = &host.documents;
      }
      score(model, ctx, &batch, statistics);
      if (!mesh.leads()) continue;
      objective.add_sums(batch, statistics, sums, ctx.stream);
      carry_sums(sums, ctx.stream);
      result.correct += count_correct(host, statistics.argmax, ctx.stream);
      if (scored) scored(host);
    }
    pending.clear();
    return true;
  };
  const bool statistics_first = objective.needs().step_statistics;
  Progress progress("evaluating", steps);
  for (int64_t step = 0; step < steps; ++step) {
    progress.set(step);
    const StepPlan plan = data.plan(step);
    result.tokens += objective.count(plan);
    if (statistics_first) {
      score_step({model, ctx, buffers, DataPart::validation, mesh}, data, plan, objective);
      pending = plan.micro_batches;
      if (!run_pending()) return std::nullopt;
      continue;
    }
    pending.insert(pending.end(), plan.micro_batches.begin(), plan.micro_batches.end());
    if (static_cast<int64_t>(pending.size()) >= 4 * mesh.data_ranks() && !run_pending()) return std::nullopt;
  }
  if (!run_pending()) return std::nullopt;
  std::vector<ExactSum> all(objective.metrics().size());
  for (size_t metric = 0; metric < all.size(); ++metric) {
    const std::span<int64_t> limbs = all[metric].limbs();
    copy_to_host(limbs.data(), sums.rows(static_cast<int64_t>(metric), 1).data,
                 static_cast<int64_t>(limbs.size_bytes()), ctx.stream);
  }
  ctx.stream.synchronize();
  mesh.job().sum(std::span(&result.correct, 1));
  if (!objective.counts().empty()) mesh.job().sum(objective.counts());
  result.labels = objective.label_scores();
  std::vector<double> totals;
  for (ExactSum& sum : all) {
    mesh.job().sum(sum);
    totals.push_back(sum.value());
  }
  for (size_t metric = 0; metric < all.size(); ++metric) {
    const MetricSpec& spec = objective.metrics()[metric];
    const double value = metric_value(objective.metrics(), totals, metric, result.tokens);
    if (metric == 0) {
      result.loss = value;
    } else {
      result.metrics.push_back({std::string(spec.name), std::string(spec.label), value});
    }
  }
  return result;
}

}  // namespace llmtrain
