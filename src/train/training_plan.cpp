#include "train/training_plan.hpp"

#include <algorithm>
#include <utility>

#include "train/saver.hpp"

namespace llmtrain {

TrainingPlan::TrainingPlan(TrainingParts parts, std::vector<RoleSpec> roles, const PlanOptions& options)
    : TrainingParts(std::move(parts)), counts_correct(options.counts_correct) {
  const PassPlan passes = roles.front().passes.value();
  const int64_t vocabulary = roles.front().shape.config.vocab_size;
  for (RoleSpec& role : roles) models.add(std::move(role));
  if (objective->needs().reference) {
    if (reference_values) {
      reference.emplace(std::move(*reference_values));
    } else {
      reference.emplace(models.has(Role::reference) ? models.at(Role::reference) : models.at(Role::policy));
    }
  }
  if (options.sync.every > 0) sync.emplace(params(), models.at(Role::reference).params(), options.sync);
  models.plan(arena);
  if (objective->needs().teacher) {
    teacher.emplace(teacher_options.value(), models.has(Role::teacher) ? &models.at(Role::teacher) : nullptr);
    teacher->plan(arena, models.at(Role::policy).actor().head().blocks.front().block_rows(passes.max_rows));
  }
  optimizer->plan(params(), arena);
  plan_buffers(passes, options);
  batches().plan_memory(models, arena, passes.compute, options.ranks);
  copied_bytes = std::min(Snapshot::bytes(params()), options.copy_bytes);
  if (device_memory_is_host() && copied_bytes > 0) {
    arena.add(state_copy, MemoryCategory::workspace, "checkpoint.buffer", DType::u8, {copied_bytes});
  }
  scores.answers.plan(models.at(Role::policy), arena, passes.compute, options.ranks);
  if (prompts.empty()) return;
  // As many rows as a block has, so that samples do not depend on how many ranks share them.
  const int64_t context = std::min(passes.longest, RowShares{rows.blocks, rows.blocks}.max_rows(batches().max_rows()));
  generator.emplace(models.at(Role::policy).actor(),
                    GeneratorCapacity{vocabulary, std::min(context, std::ssize(prompts)), context, false});
  generator->plan(arena, passes.compute);
}

void TrainingPlan::plan_buffers(const PassPlan& passes, const PlanOptions& options) {
  constexpr MemoryCategory category = MemoryCategory::activations;
  const int64_t rows = passes.context * passes.max_rows;
  int64_t segments = std::max(batches().max_segments(), validation ? validation->max_segments() : 0);
  if (!scores.choices.empty()) segments = std::max(segments, segments_for(rows));
  buffers.batch.plan(arena, rows, segments, batches().kept_words(), this->rows.blocks);  // each block has a row
  objective->plan(arena, rows, segments);
  if (objective->needs().documents) {
    arena.add(buffers.documents, category, "statistics.documents", DType::f64, {segments});
  }
  const auto add_outputs = [&](Tensor& tensor, const char* name) {
    const int64_t outputs = objective->needs().outputs;
    outputs > 1 ? arena.add(tensor, category, name, DType::f32, {rows, outputs})
                : arena.add(tensor, category, name, DType::f32, {rows});
  };
  add_outputs(buffers.statistics.logp, "statistics.logp");
  arena.add(buffers.statistics.lse, category, "statistics.lse", DType::f32, {rows});
  const ObjectiveNeeds needs = objective->needs();
  if (needs.entropy || needs.shows_entropy) {
    arena.add(buffers.statistics.entropy, category, "statistics.entropy", DType::f32, {rows});
  }
  if (needs.entropy) {
    arena.add(buffers.cotangents.entropy, category, "cotangents.entropy", DType::f32, {rows});
  }
  if (needs.uniform) {
    arena.add(buffers.statistics.uniform, category, "statistics.uniform", DType::f32, {rows});
    arena.add(buffers.cotangents.uniform, category, "cotangents.uniform", DType::f32, {rows});
  }
  if (needs.lse_squared) {
    arena.add(buffers.cotangents.lse_squared, category, "cotangents.lse_squared", DType::f32, {rows});
  }
  if (needs.value) {
    arena.add(buffers.statistics.value, category, "statistics.value", DType::f32, {rows});
    arena.add(buffers.cotangents.value, category, "cotangents.value", DType::f32, {rows});
  }
  if (needs.teacher) {
    arena.add(buffers.statistics.distilled, category, "statistics.distilled", DType::f32, {rows});
    arena.add(buffers.statistics.divergence, category, "statistics.divergence", DType::f32, {rows});
    arena.add(buffers.statistics.left_out, category, "statistics.left_out", DType::f32, {rows});
    arena.add(buffers.statistics.agreement, category, "statistics.agreement", DType::f32, {rows});
  }
  if (needs.mean_logits) {
    arena.add(buffers.statistics.mean_logit, category, "statistics.mean_logit", DType::f32, {rows});
  }
  if (options.counts_correct || !scores.choices.empty()) {
    arena.add(buffers.statistics.argmax, category, "statistics.argmax", DType::i32, {rows});
  }
  arena.add(buffers.sums.integers, category, "statistics.sums", DType::i64,
            {std::ssize(objective->metrics()) + 1, ExactSum::integer_count});
  const bool updates_on_device =
      !device_memory_is_host() && params().offload().pinned_bytes() == 0 && params().offload().disk_bytes() == 0;
  if (router) router->plan(arena);  // whose losses the host adds
  if (updates_on_device && passes.compute != DType::f16 && !options.compares_losses && !router) {
    arena.add(buffers.sums.decision, category, "statistics.decision", DType::f64, {2});
  }
  add_outputs(buffers.cotangents.logp, "cotangents.logp");
  if (passes.compute == DType::f16) {
    arena.add(buffers.cotangent_scale, category, "cotangents.scale", DType::f32, {1});
  }
}

}  // namespace llmtrain
