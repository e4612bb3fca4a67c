#include <algorithm>
#include <bit>
#include <span>
#include <vector>

#include "core/activity.hpp"
#include "evaluation/evaluate.hpp"
#include "objectives/document_objective.hpp"

namespace llmtrain {

namespace {

/// Adds the values of all ranks, of which one alone has each.
void share(std::vector<double>& values, Communicator& communicator) {
  std::vector<uint64_t> bits(values.size());
  std::ranges::transform(values, bits.begin(), [](double value) { return std::bit_cast<uint64_t>(value); });
  communicator.sum(std::span(bits));
  std::ranges::transform(bits, values.begin(), [](uint64_t one) { return std::bit_cast<double>(one); });
}

/// Scores one micro-batch, whose documents begin at `logp` and `reference`; an idle pass for a null batch.
void score_documents(const ScoringPasses& passes, const HostBatch* host, double* logp, double* reference) {
  Context& ctx = passes.ctx;
  const EvaluationBuffers& buffers = passes.buffers;
  if (host == nullptr) {
    if (buffers.reference != nullptr) buffers.reference->run_idle(ctx);
    score(passes.model, ctx, nullptr, {});
    return;
  }
  const Batch batch = buffers.batch.upload(*host, ctx.stream);
  const Tensor statistic = first_rows(buffers.statistics.logp, batch.tokens);
  if (buffers.reference != nullptr) {
    DocumentColumns columns = host->documents;
    buffers.reference->score(ctx, batch, statistic, buffers.documents, columns, passes.part);
    if (passes.mesh.leads()) std::ranges::copy(columns.references, reference);
  }
  score(passes.model, ctx, &batch, {statistic, {}, {}, {}});
  if (!passes.mesh.leads()) return;
  std::vector<double> sums;
  document_sums(sums, batch, statistic, buffers.documents, ctx.stream);
  std::ranges::copy(sums, logp);
}

}  // namespace

void score_step(const ScoringPasses& passes, const DataStream& data, const StepPlan& step, Objective& objective) {
  Context& ctx = passes.ctx;
  const Mesh& mesh = passes.mesh;
  const bool training = ctx.training;
  ctx.training = false;
  HostBatch host;
  const auto score_all = [&](std::vector<double>& logp, std::vector<double>& reference, const auto& load) {
    const size_t documents = step.samples.size() * static_cast<size_t>(data.documents_of_sample());
    logp.assign(documents, 0);
    reference.assign(documents, 0);
    for (size_t first = 0; first < step.micro_batches.size(); first += static_cast<size_t>(mesh.data_ranks())) {
      report_progress();
      const size_t mine = first + static_cast<size_t>(mesh.data_rank());
      if (mine >= step.micro_batches.size()) {
        score_documents(passes, nullptr, nullptr, nullptr);
        continue;
      }
      const MicroBatchPlan& plan = step.micro_batches[mine];
      load(plan);
      score_documents(passes, &host, logp.data() + plan.first_document, reference.data() + plan.first_document);
    }
    share(logp, mesh.job());
    share(reference, mesh.job());
  };
  StepDocuments all;
  score_all(all.logp, all.reference, [&](const MicroBatchPlan& plan) { data.load(plan, host); });
  if (objective.needs().mismatched) {
    score_all(all.mismatched_logp, all.mismatched_reference,
              [&](const MicroBatchPlan& plan) { data.load_mismatched(step, plan, host); });
  }
  objective.begin_step(all);
  ctx.training = training;
}

}  // namespace llmtrain
