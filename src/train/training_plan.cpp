#include "train/training_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "models/freeze.hpp"
#include "models/lora.hpp"
#include "models/models.hpp"
#include "text/token_rows.hpp"
#include "train/saver.hpp"

namespace llmtrain {

namespace {

/// Embedding rows in the softmax. A published model has no padding rows, whatever its tokenizer.
int64_t softmax_rows(const ModelConfig& model, const Dataset& data) {
  return model.path.empty() ? data.vocabulary_size : model.vocab_size;
}

int64_t steps_of(const RunConfig& run, const DataStream& data) {
  if (run.max_steps > 0) return run.max_steps;
  const double steps = std::ceil(run.epochs * static_cast<double>(data.steps_per_epoch()));
  LLMTRAIN_CHECK(steps >= 1 && steps < 9e15, "run.epochs gives too many or no steps");
  return static_cast<int64_t>(steps);
}

ParamStoreOptions store_options(const Config& config, const ReductionGroups& groups, const RankPosition& position) {
  ParamStoreOptions options = offload_options(config);
  options.rank = position.rank;
  options.size = position.size;
  options.node_size = position.node_size;
  options.micro_batches_per_group = groups.max_size();
  options.groups = groups.count;
  options.blocks = config.parallel.reduction_blocks;
  return options;
}

/// `rows`: maximum number of tokens of a micro-batch.
void plan_buffers(StepBuffers& buffers, Arena& arena, const Config& config, int64_t metrics, bool updates_on_device,
                  int64_t rows, int64_t segments) {
  const DType compute = compute_dtype(config.precision);
  constexpr MemoryCategory category = MemoryCategory::activations;
  buffers.batch.plan(arena, rows, segments);
  arena.add(buffers.statistics.logp, category, "statistics.logp", DType::f32, {rows});
  arena.add(buffers.statistics.lse, category, "statistics.lse", DType::f32, {rows});
  if (config.checkpoint.best_metric == CheckpointConfig::Metric::token_accuracy) {
    arena.add(buffers.statistics.argmax, category, "statistics.argmax", DType::i32, {rows});
  }
  arena.add(buffers.sums.integers, category, "statistics.sums", DType::i64, {metrics + 1, ExactSum::integer_count});
  if (updates_on_device && compute != DType::f16 && config.divergence.spike_z_score == 0) {
    arena.add(buffers.sums.decision, category, "statistics.decision", DType::f64, {2});
  }
  arena.add(buffers.cotangents.logp, category, "cotangents.logp", DType::f32, {rows});
  if (compute == DType::f16) arena.add(buffers.cotangent_scale, category, "cotangents.scale", DType::f32, {1});
}

}  // namespace

ParamStoreOptions offload_options(const Config& config) {
  ParamStoreOptions options;
  options.compute = compute_dtype(config.precision);
  options.zero_stage = static_cast<int>(config.parallel.zero);
  options.offload_optimizer = config.parallel.offload_optimizer;
  options.offload_parameters = config.parallel.offload_parameters;
  options.offload_path = config.parallel.offload_path;
  return options;
}

TrainedRule trained_rule(const Config& config) {
  switch (config.run.finetuning) {
    case RunConfig::Finetuning::lora:
      return lora_trained_rule(config.lora, config.model);
    case RunConfig::Finetuning::freeze:
      return freeze_rule(config.freeze, config.model);
    case RunConfig::Finetuning::full:
      break;
  }
  return {};
}

std::vector<std::vector<int32_t>> encode_prompts(const Config& config, const Tokenizer* tokenizer) {
  std::vector<std::vector<int32_t>> prompts;
  if (config.log.samples_every_steps == 0) return prompts;
  if (tokenizer == nullptr) {
    throw UserError(
        ExitCode::deck,
        config.provenance.where("log.samples_every_steps") +
            ": the data are token ids without a tokenizer, so that samples cannot be text: set the key to 0");
  }
  for (const std::string& text : config.log.sample_prompts) {
    const std::string place = fmt::format("{}: '{}'", config.provenance.where("log.sample_prompts"), text);
    try {
      tokenizer->encode(text, prompts.emplace_back());
    } catch (const EncodeError& error) {
      throw UserError(ExitCode::deck, place + ": " + error.what());
    }
    require_rows(prompts.back(), tokenizer, config.model.vocab_size, place);
  }
  if (prompts.empty()) prompts.emplace_back();
  return prompts;
}

TrainingPlan::TrainingPlan(const Config& config, const Dataset& data, const RankPosition& position)
    : tokenizer(data.tokenizer),
      prompts(encode_prompts(config, data.tokenizer.get())),
      train_source(data.train),
      train(data.sources, config.data, config.batch, static_cast<uint64_t>(config.data.seed), config.data.shuffle),
      groups(config.batch.gradient_accumulation_steps, config.parallel.reduction_groups),
      total_steps(steps_of(config.run, train)),
      objective(make_cross_entropy()),
      optimizer(make_optimizer(config.optimizer)) {
  if (data.validation != nullptr) {
    validation.emplace(data.validation, config.data, config.batch, static_cast<uint64_t>(config.run.seed), false);
    const EvaluationConfig& e = config.evaluation;
    if (e.every_steps > 0 || e.at_start || e.at_end) require_trained_tokens(*validation, first_steps(e, *validation));
  }
  const DType compute = compute_dtype(config.precision);
  int64_t rows = train.max_rows(), segments = train.max_segments();
  if (validation) {
    rows = std::max(rows, validation->max_rows());
    segments = std::max(segments, validation->max_segments());
  }
  DecoderShape shape = decoder_shape(config.model, softmax_rows(config.model, data));
  shape.trained = trained_rule(config);
  models.add({.role = Role::policy,
              .shape = std::move(shape),
              .trains = true,
              .store = store_options(config, groups, position),
              .passes = PassPlan{compute, rows, true, config.memory.recompute, config.batch.sequence_length},
              .weights = {.folder = config.model.path, .seed = static_cast<uint64_t>(config.run.seed)}});
  models.plan(arena);
  const bool updates_on_device =
      !device_memory_is_host() && params().pinned_bytes() == 0 && params().offloaded_bytes() == 0;
  plan_buffers(buffers, arena, config, std::ssize(objective->metrics()), updates_on_device, rows, segments);
  // If checkpoints are saved only on request, a save may delay an update: no copy is needed.
  const bool copies = config.checkpoint.saves() || config.needs_best();
  copied_elements = copies ? std::min(Snapshot::elements(params()), config.checkpoint.buffer / state_bytes) : 0;
  if (device_memory_is_host() && copied_elements > 0) {
    arena.add(state_copy, MemoryCategory::workspace, "checkpoint.buffer", DType::f32, {copied_elements});
  }
  if (prompts.empty()) return;
  const int64_t context = std::min(config.batch.sequence_length, train.max_rows());
  generator.emplace(model(), GeneratorRoom{config.model.vocab_size,
                                           std::min(context, static_cast<int64_t>(prompts.size())), context, false});
  generator->plan(arena, compute);
}

}  // namespace llmtrain
