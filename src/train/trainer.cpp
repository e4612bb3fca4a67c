#include "train/trainer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>

#include "core/activity.hpp"
#include "core/clock.hpp"
#include "core/machine.hpp"
#include "core/profile.hpp"
#include "core/stop_request.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/reduce.hpp"
#include "models/models.hpp"
#include "optim/schedule.hpp"
#include "params/offload_file.hpp"
#include "train/evaluate.hpp"
#include "train/run/run_directory.hpp"
#include "train/step_hook.hpp"
#include "train/step_profile.hpp"
#include "train/trainer_run.hpp"

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

ParamStoreOptions store_options(const Config& config, const ReductionGroups& groups, int rank, int size,
                                int node_size) {
  ParamStoreOptions options = offload_options(config);
  options.rank = rank;
  options.size = size;
  options.node_size = node_size;
  options.micro_batches_per_group = groups.max_size();
  options.groups = groups.count;
  options.blocks = config.parallel.reduction_blocks;
  return options;
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

Trainer::Run::Run(Trainer& trainer, Runtime& runtime_in, RunLog& log_in, StopMonitor& stop_monitor_in)
    : runtime(runtime_in),
      log(log_in),
      ctx{trainer.params_, trainer.arena_, runtime_in.stream(), static_cast<uint64_t>(trainer.config_.run.seed)},
      prefetcher(trainer.train_),
      no_graphs(PassGraphs::refusal(trainer.config_.parallel.cuda_graphs, trainer.config_.model, trainer.params_)),
      graphs(Graph::available() && no_graphs.empty(), trainer.params_),
      guard(trainer.config_.divergence),
      scaler(trainer.config_.precision),
      stop_monitor(stop_monitor_in) {}

Trainer::Trainer(const Config& config, const Dataset& data, int rank, int size, int node_size)
    : config_(config),
      tokenizer_(data.tokenizer),
      prompts_(encode_prompts(config, data.tokenizer.get())),
      train_source_(data.train),
      train_(data.sources, config.data, config.batch, static_cast<uint64_t>(config.data.seed), config.data.shuffle),
      groups_(config.batch.gradient_accumulation_steps, config.parallel.reduction_groups),
      total_steps_(steps_of(config.run, train_)),
      shape_(decoder_shape(config.model, softmax_rows(config.model, data))),
      model_(make_model(config.model, shape_.tokens)),
      objective_(make_cross_entropy()),
      optimizer_(make_optimizer(config.optimizer)),
      params_(model_->units(), store_options(config, groups_, rank, size, node_size)) {
  if (data.validation != nullptr) {
    validation_.emplace(data.validation, config.data, config.batch, static_cast<uint64_t>(config.run.seed), false);
    const EvaluationConfig& e = config.evaluation;
    if (e.every_steps > 0 || e.at_start || e.at_end) require_trained_tokens(*validation_, first_steps(e, *validation_));
  }
  const DType compute = compute_dtype(config.precision);
  int64_t rows = train_.max_rows(), segments = train_.max_segments();
  if (validation_) {
    rows = std::max(rows, validation_->max_rows());
    segments = std::max(segments, validation_->max_segments());
  }
  params_.plan(arena_);
  model_->plan(arena_, {compute, rows, true, config.memory.recompute, config.batch.sequence_length});
  batch_.plan(arena_, rows, segments);
  arena_.add(statistics_.logp, MemoryCategory::activations, "statistics.logp", DType::f32, {rows});
  arena_.add(statistics_.lse, MemoryCategory::activations, "statistics.lse", DType::f32, {rows});
  if (config.checkpoint.best_metric == CheckpointConfig::Metric::token_accuracy) {
    arena_.add(statistics_.argmax, MemoryCategory::activations, "statistics.argmax", DType::i32, {rows});
  }
  arena_.add(sums_, MemoryCategory::activations, "statistics.sums", DType::i64, {step_sums, ExactSum::integer_count});
  const bool updates_on_device = !device_memory_is_host() && pinned_bytes() == 0 && offloaded_bytes() == 0;
  if (updates_on_device && compute != DType::f16 && config_.divergence.spike_z_score == 0) {
    arena_.add(decision_, MemoryCategory::activations, "statistics.decision", DType::f64, {2});
  }
  arena_.add(cotangents_.logp, MemoryCategory::activations, "cotangents.logp", DType::f32, {rows});
  if (compute == DType::f16) {
    arena_.add(cotangent_scale_, MemoryCategory::activations, "cotangents.scale", DType::f32, {1});
  }
  // If checkpoints are saved only on request, a save may delay an update: no copy is needed.
  const bool copies = config.checkpoint.saves() || config.needs_best();
  copied_elements_ = copies ? std::min(Snapshot::elements(params_), config.checkpoint.buffer / state_bytes) : 0;
  if (device_memory_is_host() && copied_elements_ > 0) {
    arena_.add(state_copy_, MemoryCategory::workspace, "checkpoint.buffer", DType::f32, {copied_elements_});
  }
  if (prompts_.empty()) return;
  const int64_t context = std::min(config.batch.sequence_length, train_.max_rows());
  generator_.emplace(*model_, GeneratorRoom{config.model.vocab_size,
                                            std::min(context, static_cast<int64_t>(prompts_.size())), context, false});
  generator_->plan(arena_, compute);
}

void Trainer::reserve_disk(Communicator& communicator) {
  if (!config_.parallel.uses_disk()) return;
  // The ranks of a node share its disk: they report one error, with the sum.
  const std::string host = host_name(), local_micro_batches = fmt::format("{} {}", params_.offloaded_bytes(), host);
  int64_t of_node = 0;
  for (const std::string& other : communicator.gather_all(local_micro_batches)) {
    std::istringstream text(other);
    int64_t bytes = 0;
    std::string where;
    text >> bytes >> where;
    if (where == host) of_node += bytes;
  }
  const std::string& folder = config_.parallel.offload_path;
  const std::string place =
      config_.provenance.where("parallel.offload_path") + (communicator.node_count() > 1 ? " on " + host : "");
  throw_on_all_ranks(communicator, [&] { check_offload_folder(folder, of_node, place); });
  throw_on_all_ranks(communicator, [&] {
    try {
      params_.reserve_disk();
    } catch (const UserError& error) {  // failures that could not be checked before
      throw UserError(error.code(), place + ": " + error.what());
    }
  });
}

void Trainer::start(Run& run, const ResumePoint* from) {
  run.memory.emplace(arena_, run.runtime.communicator());
  params_.start(run.runtime.communicator(), run.runtime.stream());
  start_run(run, from);
  model_->start(run.runtime.stream());
}

Trainer::Ended Trainer::train(Runtime& runtime, RunLog& log, StopMonitor& stop_monitor, const ResumePoint* from) {
  Run run(*this, runtime, log, stop_monitor);
  start(run, from);
  int64_t completed = 0;
  if (from != nullptr) {
    completed = restore(run, *from);
  } else {
    set_weights(run);
    run.pending.evaluation = config_.evaluation.at_start;
  }
  read_texts(run);
  if (Graph::available() && !run.no_graphs.empty()) log.print("graphs     none: " + run.no_graphs);
  if (completed < total_steps_) prepare(run, completed);
  StepProfile profile(config_.log.profile, total_steps_ - completed);
  const auto report_profile = [&](bool the_end) {
    if (!profile.due(the_end)) return;
    profile.report(runtime, compute_dtype(config_.precision), RunDirectory::path_of(config_), run.log);
  };
  int64_t stop = run_due_actions(run, completed);
  while (completed < total_steps_ && !run.stop && stop == 0) {
    profile.begin_step(completed, run.runtime.stream());
    const bool done = step(run, completed);
    profile.end_step();
    if (profile.recording()) {
      int64_t crowded[] = {profile.crowded() ? 1 : 0};
      runtime.communicator().maximum(crowded);
      if (crowded[0] != 0) profile.end_here();
    }
    report_profile(false);
    if (done) {
      ++completed;
      const bool last = completed == total_steps_;
      const int64_t samples = config_.log.samples_every_steps;
      run.pending.evaluation = due(config_.evaluation.every_steps, completed) || (last && config_.evaluation.at_end);
      run.pending.samples = due(samples, completed) || (last && samples > 0);
    }
    stop = run_due_actions(run, completed);
  }
  // A job that was asked to stop has little time, and the next one records again.
  if (stop == 0) report_profile(true);
  return finish(run, completed, stop);
}

int64_t Trainer::run_due_actions(Run& run, int64_t& completed) {
  const SectionScope section(Section::step);  // inner work may set its own section
  int64_t stop = 0;
  const bool save = due(config_.checkpoint.every_steps, completed);
  if (run.pending.evaluation || run.pending.samples || save || completed == total_steps_) finish_pending_step(run);
  do {
    if (run.guard.must_roll_back()) completed = roll_back(run, completed);
    if (run.pending.evaluation) stop = evaluate(run, completed);
    if (run.pending.samples && stop == 0 && !run.guard.must_roll_back()) stop = write_samples(run, completed);
    if (stop == 0 && run.guard.must_roll_back()) continue;
    stop = save_if_due(run, completed, stop);
  } while (stop == 0 && (run.guard.must_roll_back() || run.pending.evaluation || run.pending.samples));
  return stop;
}

Trainer::Ended Trainer::finish(Run& run, int64_t completed, int64_t stop) {
  const SectionScope section(Section::ending);
  steps_done_ = completed;
  run.saver->finish();
  if (run.graphs.recorded() > 0) {
    run.log.print(fmt::format("graphs     {} recorded; {} of {} passes ran as graphs", run.graphs.recorded(),
                              run.graphs.launched(), run.graphs.all()));
  }
  if (stop != 0) {
    const std::string place = run.pending.evaluation ? " in an evaluation" : run.pending.samples ? " in sampling" : "";
    run.log.stop(fmt::format(
        "stopped by {}{} after {} of {} steps; the same command {}resumes from {}", stop_reason(stop), place, completed,
        total_steps_, config_.run.overwrite ? "with run.overwrite=false " : "",
        run.saved_step == completed ? "there" : fmt::format("step {}", std::max<int64_t>(run.saved_step, 0))));
    return Ended::stopped;
  }
  if (config_.needs_best()) load_best(run, completed);
  if (config_.checkpoint.export_model != CheckpointConfig::Export::none) export_weights(run);
  run.log.finish(run.stop ? fmt::format("stopped early after {} steps: {} evaluations without a better {}", completed,
                                        run.without_improvement, name_of(config_.checkpoint.best_metric))
                          : "finished");
  return Ended::finished;
}

void Trainer::prepare(Run& run, int64_t n) {
  train_.plan(run.guard.data_step(n), run.plan);
  run.local_micro_batches.clear();
  run.next_local = 0;
  const Communicator& communicator = run.runtime.communicator();
  const int64_t micro_batches = static_cast<int64_t>(run.plan.micro_batches.size());
  const int64_t groups = groups_.used(micro_batches);
  for (int64_t group = communicator.rank(); group < groups; group += communicator.size()) {
    const int64_t end = std::min(groups_.begin(group + 1), micro_batches);
    for (int64_t index = groups_.begin(group); index < end; ++index) run.local_micro_batches.push_back(index);
  }
  if (!run.local_micro_batches.empty())
    run.prefetcher.request(run.plan.micro_batches[static_cast<size_t>(run.local_micro_batches.front())]);
}

bool Trainer::step(Run& run, int64_t n) {
  const SectionScope section(Section::step);
  const ProfileSpan whole(SpanKind::phase, "step");
  activity().step = n + 1;
  const double begin = now();
  StepRecord record;
  record.step = n + 1;
  record.tokens = run.plan.trained_tokens;
  record.samples = run.plan.samples_hash;
  // skipped steps do not advance the schedule
  const int64_t updates = std::max<int64_t>(n - run.scaler.skipped_steps(), 0);
  record.learning_rate = learning_rate(config_.schedule, updates, total_steps_);
  run.ctx.step = n;
  run.ctx.training = true;
  run.loss.clear();
  const double tokens = static_cast<double>(std::max<int64_t>(record.tokens, 1));
  if (!cotangent_scale_.empty()) fill(cotangent_scale_, run.scaler.cotangent(tokens), run.ctx.stream);
  fill_zero(sums_.data, sums_.bytes(), run.ctx.stream);
  if (!run.pending_step) run.phases = {};

  run_rounds(run);
  if (n + 1 < total_steps_) prepare(run, n + 1);
  const double reduced = now();
  ProfileSpan phase(SpanKind::phase, "reduction");
  params_.finish_gradients();
  if (step_hook != nullptr) {
    step_hook({n, run.guard.data_step(n), run.runtime.communicator().rank(), params_, run.loss, record.learning_rate});
  }
  const double divisor = run.scaler.divisor(tokens);
  sum_gradient_squares(sums_.rows(gradient_square_sum, 1), params_, run.ctx.stream);
  const bool by_device = device_decides(run);
  if (by_device) decide_on_device(run, divisor);
  const double queued = now();
  run.phases.reduction += queued - reduced;
  finish_pending_step(run);  // the step before, while the device works on this one
  if (run.guard.must_roll_back()) return false;
  const double learned = now();
  copy_to_host(run.sums.data(), sums_.data, sums_.bytes(), run.ctx.stream);
  if (by_device) {
    copy_to_host(run.decision.data(), decision_.data, decision_.bytes(), run.ctx.stream);
    run.decided.record(run.ctx.stream);
  } else {
    sum_on_host(run);
    read_values(run, record, divisor);
  }
  const double decided = now();
  phase.next("update");
  run.phases.reduction += decided - learned;
  if (by_device) {
    update(run, record, 1);
  } else if (check_step(run, record, n)) {
    update(run, record, clip_factor(record.grad_norm, config_.optimizer.max_grad_norm) / divisor);
  }
  phase.next("log");
  const bool hashed =
      due(config_.log.parameter_hash_every_steps, record.step) || due(config_.checkpoint.every_steps, record.step);
  if (hashed) record.parameters = hash_after(run, record.step);
  const double end = now();
  run.phases.optimizer += end - decided;
  if (by_device) {
    run.pending_step = {record, divisor, begin};
    if (hashed) finish_pending_step(run);
  } else {
    record.seconds = end - begin;
    record.phases = run.phases;
    run.step_seconds = std::max(run.step_seconds, record.seconds);
    run.log.step(record);
  }
  return true;
}

bool Trainer::check_step(Run& run, StepRecord& record, int64_t n) {
  LossScaler& scaler = run.scaler;
  const double scale = scaler.scale();
  // If the loss itself is not finite, a smaller scale does not help.
  const std::optional<double> loss = record.tokens > 0 ? std::optional(record.loss) : std::nullopt;
  const bool skips = (!loss || std::isfinite(*loss)) && scaler.update(!std::isfinite(record.grad_norm));
  if (scaler.active()) record.scaling = {scale, scaler.skipped_steps(), skips};
  if (skips) return false;
  record.problem = run.guard.check(n, loss, record.grad_norm, scaler.active() ? scale : 0);
  record.bad_steps = record.problem.empty() ? 0 : run.guard.bad_in_row();
  if (record.bad_steps > 0) record.sample_ids = train_.plan(run.guard.data_step(n)).samples;
  return record.bad_steps == 0;
}

bool Trainer::device_decides(const Run& run) const {
  return !decision_.empty() && run.runtime.communicator().sums_on_device();
}

/// Sums over all ranks determine whether the update of a step takes place, and the factor that clips its gradients. If
/// the device adds them and decides, the host queues the update, and the next step's passes, in advance: the device
/// never waits for the host. The host reads, checks and logs the values of a step after it has queued the passes of the
/// next one. If they cause a rollback, that next step is discarded.
void Trainer::decide_on_device(Run& run, double divisor) {
  const std::span<const int64_t> host = run.loss.limbs();
  LLMTRAIN_CHECK(std::all_of(host.begin(), host.end(), [](int64_t limb) { return limb == 0; }),
                 "what a hook adds to the loss is not seen by the device");
  carry_sums(sums_, run.ctx.stream);
  run.runtime.communicator().sum_on_device(sums_, run.ctx.stream).finish(run.ctx.stream);
  decide_step(decision_, sums_, divisor, config_.optimizer.max_grad_norm, run.ctx.stream);
}

/// The host decides, and waits for the device here: if the sums go through MPI; if it makes the update; with fp16,
/// whose scale in the next step depends on this one; and if losses are compared with earlier ones (spike_z_score). The
/// device idles while this answer travels and the first kernel of the update is launched; meanwhile the next batch is
/// read, and the next forward pass is queued while the update runs.
void Trainer::sum_on_host(Run& run) {
  run.ctx.stream.synchronize();
  auto* integers = static_cast<int64_t*>(run.sums.data());
  for (const StepSum which : {loss_sum, gradient_square_sum}) {
    const std::span<int64_t> place(integers + which * ExactSum::integer_count, ExactSum::integer_count);
    ExactSum sum;
    std::copy(place.begin(), place.end(), sum.limbs().begin());
    if (which == loss_sum) sum.add(run.loss);
    run.runtime.communicator().sum(sum);
    std::copy(sum.limbs().begin(), sum.limbs().end(), place.begin());
  }
}

void Trainer::read_values(const Run& run, StepRecord& record, double divisor) {
  const auto value = [&](StepSum which) {
    ExactSum sum;
    const auto* integers = static_cast<const int64_t*>(run.sums.data()) + which * ExactSum::integer_count;
    std::copy_n(integers, ExactSum::integer_count, sum.limbs().begin());
    return sum.value();
  };
  record.loss = -value(loss_sum) / static_cast<double>(std::max<int64_t>(record.tokens, 1));
  record.grad_norm = std::sqrt(value(gradient_square_sum)) / divisor;
}

void Trainer::finish_pending_step(Run& run) {
  if (!run.pending_step) return;
  auto [record, divisor, begin] = *std::exchange(run.pending_step, std::nullopt);
  const ProfileSpan phase(SpanKind::phase, "log");
  if (!run.decided.reached()) run.decided.synchronize();
  read_values(run, record, divisor);
  const bool applies = check_step(run, record, record.step - 1);
  const auto& decision = *static_cast<const StepDecision*>(run.decision.data());
  LLMTRAIN_CHECK(applies == (decision.applies != 0), "host and device decide alike");
  // The step time is the interval between the values of two steps, since the time to queue a step does not measure it.
  // All of that time that the host did not spend otherwise is attributed to passes.
  const double end = now();
  record.seconds = end - std::max(begin, run.known_at);
  run.known_at = end;
  record.phases = std::exchange(run.phases, {});
  StepRecord::Phases& p = record.phases;
  p.forward_backward = record.seconds - p.data - p.reduction - p.optimizer;
  run.step_seconds = std::max(run.step_seconds, record.seconds);
  run.log.step(record);
}

void Trainer::update(Run& run, const StepRecord& record, double scale) {
  run.saver->hold_update();
  const int64_t t = std::max<int64_t>(run.guard.updates(record.step) - run.scaler.skipped_steps(), 1);
  optimizer_->update(params_, {t, record.learning_rate, scale, device_decides(run) ? decision_ : Tensor{}},
                     run.ctx.stream);
}

void Trainer::run_rounds(Run& run) {
  const int64_t micro_batches = static_cast<int64_t>(run.plan.micro_batches.size());
  params_.begin_step(groups_.used(micro_batches));
  for (int64_t round = 0; round < params_.rounds(); ++round) {
    const int64_t group = params_.begin_round(round);
    const int64_t first = group < 0 ? 0 : groups_.begin(group);
    const int64_t end = group < 0 ? 0 : std::min(groups_.begin(group + 1), micro_batches);
    for (int64_t slot = 0; slot < groups_.max_size(); ++slot) {
      params_.begin_micro_batch(slot == 0, slot + 1 == groups_.max_size());
      const bool local_micro_batches = first + slot < end;
      if (local_micro_batches) {
        micro_batch(run);
      } else {
        const ProfileSpan phase(SpanKind::phase, "idle pass");
        const double begin = now();
        model_->forward(run.ctx, nullptr);
        model_->score_and_differentiate(run.ctx, nullptr, {}, {});
        model_->backward(run.ctx, nullptr);
        run.phases.reduction += now() - begin;
      }
    }
  }
}

void Trainer::micro_batch(Run& run) {
  Context& ctx = run.ctx;
  ProfileSpan phase(SpanKind::phase, "data");
  const double begin = now();
  note_progress();
  const Batch batch = batch_.upload(run.prefetcher.take(), ctx.stream);
  if (++run.next_local < run.local_micro_batches.size()) {
    run.prefetcher.request(run.plan.micro_batches[static_cast<size_t>(run.local_micro_batches[run.next_local])]);
  }
  const double loaded = now();
  const TokenStatistics statistics{
      first_rows(statistics_.logp, batch.tokens), first_rows(statistics_.lse, batch.tokens), {}, {}};
  const TokenCotangents cotangents{first_rows(cotangents_.logp, batch.tokens), {}, {}};
  LLMTRAIN_CHECK(objective_->cotangents_known(), "this objective needs two passes over the head");
  run.graphs.run(batch, ctx.stream, [&] {
    phase.next("forward");
    model_->forward(ctx, &batch);
    phase.next("head");
    objective_->cotangents(batch, statistics, cotangents, cotangent_scale_, ctx.stream);
    model_->score_and_differentiate(ctx, &batch, statistics, cotangents);
    sum_of_products(sums_.rows(loss_sum, 1), statistics.logp, batch.loss_weights, ctx.stream);
    phase.next("backward");
    model_->backward(ctx, &batch);
  });
  run.phases.data += loaded - begin;
  run.phases.forward_backward += now() - loaded;
}

}  // namespace llmtrain
