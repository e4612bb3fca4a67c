#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "hf/export.hpp"
#include "methods/roles.hpp"
#include "parallel/message.hpp"
#include "tasks/parts.hpp"
#include "text/chat/chat_encoder.hpp"
#include "text/tokens_beyond_embedding.hpp"
#include "train/checkpoint_model.hpp"

namespace llmtrain {

namespace {

/// `steps_per_epoch`: of the data.
int64_t steps_of(const RunConfig& run, int64_t steps_per_epoch) {
  if (run.max_steps > 0) return run.max_steps;
  const double steps = std::ceil(run.epochs * static_cast<double>(steps_per_epoch));
  LLMTRAIN_CHECK(steps >= 1 && steps < 9e15, "run.epochs gives too many or no steps");
  return static_cast<int64_t>(steps);
}

/// Token ids of log.sample_prompts, which are turns of the user if the run trains on instructions; an empty prompt
/// starts like a document of the data.
std::vector<std::vector<int32_t>> encode_prompts(const Config& config, const Dataset& data) {
  const LogConfig& log = config.log;
  const Provenance& provenance = config.provenance;
  const Tokenizer* tokenizer = data.tokenizer.get();
  std::vector<std::vector<int32_t>> prompts;
  if (log.samples_every_steps == 0) return prompts;
  if (tokenizer == nullptr) {
    throw UserError(
        ExitCode::deck,
        provenance.where("log.samples_every_steps") +
            ": the data are token ids without a tokenizer, so that samples cannot be text: set the key to 0");
  }
  std::optional<ChatEncoder> chat;
  if (data.rules.instructions) {
    chat.emplace(*tokenizer, config.chat, data.chat.files, training_time);
  }
  for (const std::string& text : log.sample_prompts) {
    const std::string place = fmt::format("{}: '{}'", provenance.where("log.sample_prompts"), text);
    try {
      std::vector<int32_t>& ids = prompts.emplace_back();
      if (chat && !text.empty()) {
        ids = chat->encode_prompt(text);
      } else {
        tokenizer->encode(text, ids);
      }
    } catch (const EncodeError& error) {
      throw UserError(ExitCode::deck, place + ": " + error.what());
    } catch (const UserError& error) {
      throw UserError(error.code(), place + ": " + error.what());
    }
    require_rows(prompts.back(), tokenizer, config.model.vocab_size, place);
  }
  if (prompts.empty()) prompts.emplace_back();
  return prompts;
}

}  // namespace

DataStream training_stream(const Config& config, const Dataset& data, const CurriculumConfig& curriculum) {
  return {data.sources,
          data.rules,
          method_of(config).sample_batch(config),
          static_cast<uint64_t>(config.data.seed),
          config.data.shuffle,
          curriculum,
          data.difficulties};
}

namespace {

std::optional<RouterLosses> router_losses(const Config& config) {
  const ExpertsConfig& experts = config.model.experts;
  if (!experts.exist()) return std::nullopt;
  std::vector<int64_t> layers;
  for (int64_t layer = 0; layer < config.model.n_layers; ++layer) {
    if (experts.in_layer(layer)) layers.push_back(layer);
  }
  return RouterLosses({config.objective.router_aux, config.objective.router_z_loss}, experts.count, std::move(layers));
}

}  // namespace

TrainingParts training_parts(const Config& config, const Dataset& data) {
  std::vector<std::vector<int32_t>> prompts = encode_prompts(config, data);
  const Method& method = method_of(config);
  DataStream train = training_stream(config, data, config.curriculum);
  std::optional<DataStream> validation;
  if (data.validation != nullptr) {
    const std::string key = config.data.validation.empty() ? "data.validation_fraction" : "data.validation";
    try {
      validation.emplace(data.validation, data.rules, config.batch, static_cast<uint64_t>(config.run.seed), false);
      const EvaluationConfig& e = config.evaluation;
      if (e.every_steps > 0 || e.at_start || e.at_end) require_trained_tokens(*validation, first_steps(e, *validation));
    } catch (const UserError& error) {
      throw UserError(error.code(), fmt::format("{}: the validation data cannot be used: {}",
                                                config.provenance.where(key), error.what()));
    }
  }
  std::unique_ptr<BatchSource> source = method.batches(config, data, train);
  const int64_t scored = validation ? first_steps(config.evaluation, *validation) : 0;
  EvaluationScores scores = make_scores(config, data, validation ? &*validation : nullptr, scored);
  const int64_t steps = steps_of(config.run, source ? source->steps_per_epoch() : train.steps_per_epoch());
  return {.tokenizer = data.tokenizer,
          .prompts = std::move(prompts),
          .train_source = data.train,
          .train = std::move(train),
          .validation = std::move(validation),
          .groups = {config.batch.gradient_accumulation_steps, config.parallel.reduction_groups},
          .rows = {config.parallel.context, config.parallel.row_blocks()},
          .total_steps = steps,
          .objective = method.objective(config, data),
          .evaluator = method.evaluator(config),
          .optimizer = make_optimizer(config.optimizer),
          .teacher_options = method.teacher(config, data),
          .source = std::move(source),
          .scores = std::move(scores),
          .router = router_losses(config)};
}

bool gathers_often(const Config& config, int64_t ranks) {
  return ranks > 1 && static_cast<int>(config.parallel.zero) == 3 && method_of(config).generates(config);
}

std::unique_ptr<TrainingPlan> make_training_plan(const Config& config, const Dataset& data,
                                                 const RankPosition& position, bool keeps_gathered) {
  TrainingParts parts = training_parts(config, data);
  ParamStoreOptions store = trained_store_options(config, position);
  store.micro_batches_per_group = parts.groups.max_size();
  store.groups = parts.groups.count * parts.rows.blocks;
  store.groups_at_once = parts.rows.blocks_of_rank() * config.parallel.expert;
  store.groups_in_turn = store.groups_at_once > 1 || parts.rows.blocks > 1;
  store.blocks = config.parallel.reduction_blocks;
  store.reduction = config.parallel.reduction;
  store.keeps_gathered = keeps_gathered;
  const Method& method = method_of(config);
  int64_t rows = std::max(parts.batches().max_rows(), parts.validation ? parts.validation->max_rows() : int64_t{0});
  rows = std::max({rows, rows_of_scores(config, data), parts.rows.blocks});
  const ReferenceSyncOptions sync = method.reference_sync(config);
  if (sync.every > 0) store.states.push_back(ReferenceSync::plane());
  RoleSpec policy{
      .role = Role::policy,
      .shape = trained_shape(config, config.model, softmax_rows(config.model, data)),
      .trains = true,
      .store = store,
      .passes = PassPlan{store.compute, parts.rows.max_rows(rows), true, config.memory.recompute,
                         config.batch.sequence_length, parts.rows.ranks, parts.rows.blocks},
      .weights = {
          .folder = config.model.path, .seed = static_cast<uint64_t>(config.run.seed), .run = config.run.directory()}};
  if (config.run.finetuning == RunConfig::Finetuning::lora) policy.lora = config.lora;
  std::vector<std::string> metrics;
  const Objective& evaluated = parts.evaluator ? *parts.evaluator : *parts.objective;
  for (const MetricSpec& metric : evaluated.metrics().subspan(1)) metrics.emplace_back(metric.name);
  std::ranges::copy(evaluated.score_names(), std::back_inserter(metrics));
  check_best_metric(config, metrics, !policy.shape.config.scores(), parts.scores);
  PlanOptions options;
  options.counts_correct = config.checkpoint.best_metric == "validation/token_accuracy";
  options.ranks = position.size * static_cast<int>(config.parallel.expert);
  options.compares_losses = config.divergence.spike_z_score != 0;
  // If checkpoints are saved only on request, a save may delay an update: no copy is needed.
  if (config.checkpoint.saves() || config.needs_best()) options.copy_bytes = config.checkpoint.buffer;
  options.sync = sync;
  if (method.caches_reference(config)) parts.reference_values.emplace();
  std::vector<RoleSpec> roles = method.roles({config, data, position, rows, parts.rows}, std::move(policy));
  return std::make_unique<TrainingPlan>(std::move(parts), std::move(roles), options);
}

TrainingOptions training_options(const Config& config, const TrainingPlan& plan) {
  // Members are assigned one by one: GCC 12 destroys parts of an aggregate twice if a later initialiser throws.
  TrainingOptions options{.step = {},
                          .progress = {DivergenceGuard(config.divergence), LossScaler(config.precision),
                                       BestEvaluation(config.checkpoint.best_metric, config.evaluation)}};
  options.step.schedule = config.schedule;
  options.step.max_grad_norm = config.optimizer.max_grad_norm;
  options.step.router_bias_rate = config.objective.router_bias_rate;
  options.step.seed = static_cast<uint64_t>(config.run.seed);
  options.step.replay_every = config.watchdog.replay_every_steps;
  options.step.no_graphs = PassGraphs::refusal(config.parallel.cuda_graphs, config.model, plan.params());
  if (options.step.no_graphs.empty() && config.parallel.tensor * plan.rows.blocks > 1) {
    options.step.no_graphs = "ranks exchange heads or sums during a pass, or a rank adds gradients of blocks of rows";
  }
  if (options.step.no_graphs.empty() && plan.teacher) {
    options.step.no_graphs = "the teacher's values change from pass to pass";
  }
  if (options.step.no_graphs.empty() && plan.router) {
    options.step.no_graphs = "the host sorts rows by their experts during a pass";
  }
  const auto interval = [&](int64_t steps, double epochs) {
    if (epochs == 0) return steps;
    return std::max<int64_t>(1, std::llround(epochs * static_cast<double>(plan.steps_per_epoch())));
  };
  options.evaluation = config.evaluation;
  options.evaluation.every_steps = interval(config.evaluation.every_steps, config.evaluation.every_epochs);
  options.log = config.log;
  options.checkpoints.config = config.checkpoint;
  options.checkpoints.config.every_steps = interval(config.checkpoint.every_steps, config.checkpoint.every_epochs);
  options.checkpoints.needs_best = config.needs_best();
  options.checkpoints.replays = config.watchdog.replay_every_steps > 0;
  options.checkpoints.directory = config.run.directory();
  options.checkpoints.deck = write_deck(config);
  options.compute = compute_dtype(config.precision.compute);
  options.overwrite = config.run.overwrite;
  if (config.data.has_tokenizer_files()) options.tokenizer = config.data.tokenizer;
  options.added_tokens = config.data.add_tokens;
  return options;
}

void read_export_files(TrainingOptions& options, const Config& config, const Dataset& data,
                       Communicator& communicator) {
  const bool has_chat = data.rules.instructions && data.tokenizer != nullptr;
  Message message;
  throw_on_all_ranks(communicator, [&] {
    if (communicator.rank() != 0) return;
    std::map<std::string, std::string> texts;
    if (const std::string& path = config.model.path; !path.empty()) {
      texts = config.source.fallback_checkpoint.empty() ? model_texts(path)
                                                        : CheckpointModel::texts(config.source.fallback_checkpoint);
    }
    for (const char* name : {"config.json", "generation_config.json"}) {
      if (const auto text = texts.find(name); text != texts.end()) options.checkpoints.texts.insert(*text);
    }
    message.put(stop_tokens(config, data, texts));
    if (has_chat) options.checkpoints.texts[stored_chat_name] = serialize(data.chat.files);
    const CheckpointConfig& checkpoint = options.checkpoints.config;
    if (checkpoint.export_model == CheckpointConfig::Export::none && !checkpoint.export_merged) return;
    options.exported.texts = std::move(texts);
    if (has_chat) options.exported.chat = export_chat(data.chat.config, *data.tokenizer, data.chat.files);
  });
  std::string packed = message.bytes();
  communicator.broadcast(packed);
  Message(packed).take(options.stop_ids);
}

}  // namespace llmtrain
