#include "train/run/program.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>

#include "core/number_text.hpp"
#include "data/files/data_sources.hpp"
#include "kernels/attention.hpp"
#include "kernels/matmul.hpp"
#include "metrics/console.hpp"
#include "models/models.hpp"
#include "parallel/job/cancellable_work.hpp"
#include "parallel/job/launcher.hpp"
#include "params/offload_file.hpp"
#include "train/evaluate.hpp"
#include "train/evaluation_task.hpp"
#include "train/run/estimate.hpp"
#include "train/run/job.hpp"
#include "train/run/resume.hpp"
#include "train/run/run_directory.hpp"
#include "train/run/stop_monitor.hpp"
#include "train/step_profile.hpp"
#include "train/tokenizer_task.hpp"
#include "train/trainer.hpp"

namespace llmtrain {

namespace {

/// Text of the deck, read once.
std::string read_deck(const CommandLine& command, Communicator& communicator) {
  std::string text;
  throw_on_all_ranks(communicator, [&] {
    if (communicator.rank() == 0) text = read_deck_file(command.deck);
  });
  communicator.broadcast(text);
  return text;
}

/// When Slurm requeues a job, run.overwrite must not replace the job's own earlier work: the command resumes.
void ignore_overwrite_after_requeue(Config& config, Communicator& communicator) {
  const char* restarts = std::getenv("SLURM_RESTART_COUNT");
  if (!config.run.overwrite) return;
  int64_t own = 0;
  if (communicator.rank() == 0 && restarts != nullptr && std::atoi(restarts) > 0) {
    own = RunDirectory::started_by_this_job(config) ? 1 : 0;
  }
  communicator.broadcast(&own, sizeof(own));
  if (own == 0) return;
  config.run.overwrite = false;
  config.notes.push_back("the job was requeued: run.overwrite is ignored, and the run resumes");
}

/// Collects all errors of the deck and the files it names. Rank 0 examines the files and broadcasts the result. An
/// estimate of memory does not need weights, and a resumed run has them in its checkpoint.
Config examine(const std::string& text, const CommandLine& command, Communicator& communicator, bool weights = true) {
  const DeckFiles files = command.estimate || !weights ? DeckFiles::examine_data : DeckFiles::examine;
  Config config;
  throw_on_all_ranks(communicator, [&] {
    if (communicator.rank() == 0) config = load_config(text, command.deck, command.overrides, files);
  });
  return config;
}

Config load(const std::string& text, const CommandLine& command, Communicator& communicator) {
  Config config;
  ModelFolders folders;
  const auto read = [&] { return load_config(text, command.deck, command.overrides, DeckFiles::trust, &folders); };
  try {
    throw_on_all_ranks(communicator, [&] {
      if (communicator.rank() == 0) config = read();
    });
    std::string packed = folders.packed();
    communicator.broadcast(packed);
    folders = ModelFolders::unpacked(packed);
    throw_on_all_ranks(communicator, [&] { config = read(); });
  } catch (const UserError&) {  // the error is the same on every rank; missing files belong to the same message
    examine(text, command, communicator);
    throw;
  }
  throw_on_all_ranks(communicator, [&] {  // ${NAME} may differ between nodes
    std::string first = write_deck(config);
    const std::string mine = first;
    communicator.broadcast(first);
    if (mine != first) {
      throw UserError(ExitCode::deck, fmt::format("{}: the deck resolves differently on rank {}: start all ranks with "
                                                  "the same arguments and the same environment variables",
                                                  command.deck, communicator.rank()));
    }
  });
  ignore_overwrite_after_requeue(config, communicator);
  return config;
}

void resolve_precision(Config& config, bool fast_bf16) {
  using Compute = PrecisionConfig::Compute;
  if (config.precision.compute == Compute::automatic) config.set_compute(fast_bf16 ? Compute::bf16 : Compute::fp32);
  const bool wanted = config.precision.compute == Compute::tf32;
  if (!use_tf32(wanted) && wanted) {
    config.notes.push_back(config.provenance.where("precision.compute") +
                           ": this device has no tf32; products use fp32");
  }
  const ParallelConfig& parallel = config.parallel;
  if (parallel.offload_parameters != Offload::none && parallel.offload_optimizer == Offload::none &&
      compute_dtype(config.precision) != DType::f32) {
    config.notes.push_back(
        config.provenance.where("parallel.offload_parameters") +
        ": no effect without parallel.offload_optimizer, since weights are rounded from the masters");
  }
}

/// Returns whether rank 0's device is fast at it.
bool agreed_fast_bf16(Communicator& communicator) {
  int64_t fast = bf16_products_are_fast() ? 1 : 0;
  communicator.broadcast(&fast, sizeof(fast));
  return fast != 0;
}

/// Prints the sources of a mixture, and how documents become samples.
void print_sources(RunLog& log, const Config& config, const DataStream& stream, int64_t steps) {
  const std::vector<SourceShare> sources = stream.sources();
  const double taken = static_cast<double>(steps) * static_cast<double>(config.batch.global);
  for (size_t s = 0; s < sources.size() && sources.size() > 1; ++s) {
    log.print(fmt::format("source     {}: {:.4g} % of the samples; it has {}, used for {:.2f} epochs",
                          split_weight(config.data.train[s]).pattern, 100 * sources[s].share,
                          count_text(sources[s].samples),
                          taken * sources[s].share / static_cast<double>(sources[s].samples)));
  }
  if (config.data.packing != DataConfig::Packing::wrap) {
    const SampleCounts& counts = stream.counts();
    const double room = static_cast<double>(counts.samples) * static_cast<double>(config.batch.sequence_length);
    log.print(fmt::format("packing    {}: samples are {:.1f} % full", name_of(config.data.packing),
                          100 * static_cast<double>(counts.inputs) / room));
  }
  print_left_out(log, stream.counts());
}

void print_resume(RunLog& log, const ResumePoint& from) {
  log.print(fmt::format("{}    {}, step {}, written by {} rank{}", from.own ? "resumed" : "started", from.path,
                        from.manifest.step, from.manifest.shards.size(), from.manifest.shards.size() == 1 ? "" : "s"));
  for (const std::string& note : from.notes) log.warn(note);
}

/// Prints the sizes of offloaded state.
void print_offload(RunLog& log, const Config& config, int64_t bytes, int64_t pinned) {
  const ParallelConfig& parallel = config.parallel;
  if (pinned != 0) {
    log.print(fmt::format("offload    {} per rank in host memory", bytes_text(static_cast<double>(pinned))));
  }
  if (bytes == 0) return;
  log.print(fmt::format("offload    {} per rank in {}", bytes_text(static_cast<double>(bytes)), parallel.offload_path));
  if (is_in_memory(parallel.offload_path)) {
    log.warn(fmt::format("{}: {} lies in memory (tmpfs), so that offloading saves nothing: give a folder on a disk",
                         config.provenance.where("parallel.offload_path"), parallel.offload_path));
  }
}

void print_opening(RunLog& log, const Config& config, const Trainer& trainer, const Dataset& data, Runtime& runtime) {
  Communicator& c = runtime.communicator();
  const DataStream& stream = trainer.training_data();
  const int64_t ranks = c.size();
  print_machine(log, config, runtime);
  print_model(log, config, trainer.parameter_count());
  log.print(fmt::format(
      "plan       ZeRO {}, micro-batch {}, global batch {} x {} tokens, {} accumulation steps, {} reduction "
      "group{}",
      config.parallel.zero, config.batch.micro, config.batch.global, config.batch.sequence_length,
      config.batch.gradient_accumulation_steps, trainer.groups(), trainer.groups() == 1 ? "" : "s"));
  print_memory(log, trainer.plan(), c);
  print_offload(log, config, trainer.offloaded_bytes(), trainer.pinned_bytes());
  log.print(fmt::format("data       {} tokens, {} samples, {} steps an epoch; {:.2f} epochs in {} steps",
                        count_text(data.train->tokens()), count_text(stream.samples()),
                        count_text(stream.steps_per_epoch()),
                        static_cast<double>(trainer.total_steps()) / static_cast<double>(stream.steps_per_epoch()),
                        count_text(trainer.total_steps())));
  print_sources(log, config, stream, trainer.total_steps());
  if (data.validation != nullptr) log.print(fmt::format("validation {} tokens", count_text(data.validation->tokens())));
  log.print(fmt::format("results    {}", RunDirectory::path_of(config)));
  if (trainer.groups() < ranks) {
    log.warn(
        fmt::format("{} of {} ranks have no reduction group: they own shards but compute nothing. Use a larger "
                    "batch.global, a smaller batch.micro or fewer ranks",
                    ranks - trainer.groups(), ranks));
  }
  warn_of_missing_targets(log, stream, c);
  print_warnings(log, config, runtime);
}

/// Ranks of a node share memory if there is room for it; a note says why they do not.
std::unique_ptr<Trainer> plan_trainer(Config& config, const Dataset& data, Communicator& communicator) {
  std::unique_ptr<Trainer> trainer;
  const auto plan = [&](int node_size) {
    throw_on_all_ranks(communicator, [&] {
      trainer = std::make_unique<Trainer>(config, data, communicator.rank(), communicator.size(), node_size);
    });
  };
  plan(communicator.sharing_ranks());
  const std::string refusal = communicator.sharing_refusal(trainer->plan().shared_bytes());
  if (!refusal.empty()) {
    config.notes.push_back(refusal);
    plan(1);
  }
  return trainer;
}

/// Prints notes to stderr, since programs may read the requested output on stdout.
void print_notes(const Config& config) {
  for (const std::string& note : config.notes) fmt::print(stderr, "{}\n", note);
}

/// Plan of the last of `ranks` ranks, which has the largest shards, on a node with `of_node` of them, with the number
/// of threads that a rank has there.
struct RankPlan {
  RankPlan(const Config& config, const Dataset& data, int64_t ranks, int64_t of_node) {
    use_threads(choose_threads(find_thread_facts(static_cast<int>(of_node))).threads);
    const int size = static_cast<int>(ranks), node_size = device_memory_is_host() ? static_cast<int>(of_node) : 1;
    const bool evaluates = config.run.task == RunConfig::Task::evaluate;
    if (evaluates) {
      task.emplace(config, data, size - 1, size);
    } else {
      trainer.emplace(config, data, size - 1, size, node_size);
    }
    const bool profiles = !evaluates && config.log.profile > 0;
    const int64_t profile = profiles ? limits_memory_bytes(compute_dtype(config.precision), of_node) : 0;
    kernel_bytes = matmul_workspace_bytes() + profile;
    if (!device_memory_is_host()) spared_bytes = profile;  // as in check_plan()
  }
  const Arena& arena() const { return trainer ? trainer->plan() : task->plan(); }

  std::optional<EvaluationTask> task;
  std::optional<Trainer> trainer;
  int64_t kernel_bytes;      ///< memory of libraries, beside the process
  int64_t spared_bytes = 0;  ///< see Estimate
};

/// Assumptions of a training plan about the machines.
std::string assumption_of(const Config& config) {
  if (attention_backend("some library", config).empty()) return {};
  const ModelConfig& m = config.model;
  AttentionShape shape{.heads = m.n_heads, .kv_heads = m.n_kv_heads, .head_dim = m.head_dim};
  shape.softcap = static_cast<float>(m.attention_softcap);
  shape.longest = config.batch.sequence_length;
  shape.window = m.window_of_layer(0);
  for (int64_t layer = 1; layer < m.n_layers; ++layer) shape.window = std::min(shape.window, m.window_of_layer(layer));
  return attention_assumption(shape, config.batch.micro * config.batch.sequence_length);
}

int estimate(const CommandLine& command, const std::string& deck_text, Config& config, Runtime& runtime) {
  Communicator& communicator = runtime.communicator();
  examine(deck_text, command, communicator);
  const bool evaluates = config.run.task == RunConfig::Task::evaluate;
  const Dataset data = evaluates ? load_evaluated_data(config, communicator, [](const std::string&) {})
                                 : load_data(config, communicator, [](const std::string&) {});
  Estimate e;
  e.ranks = command.ranks > 0 ? command.ranks : communicator.size();
  e.ranks_per_node = std::min<int64_t>(e.ranks, command.ranks_per_node > 0 ? command.ranks_per_node
                                                : command.ranks > 0        ? e.ranks
                                                                           : communicator.node_size());
  const RankPlan plan(config, data, e.ranks, e.ranks_per_node);
  e.plan = &plan.arena();
  e.library_bytes = device_context_bytes(e.ranks_per_node) + plan.kernel_bytes;
  e.spared_bytes = plan.spared_bytes;
  e.limit = config.memory.limit;
  if (evaluates) {
    e.parameters = plan.task->parameter_count();
  } else {
    e.parameters = plan.trainer->parameter_count();
    e.offloaded_bytes = plan.trainer->offloaded_bytes();
    e.pinned_bytes = plan.trainer->pinned_bytes();
    e.state_bytes = 12 * e.parameters;  // fp32 master weight and both moments
    if (const std::string note = assumption_of(config); !note.empty()) config.notes.push_back(note);
  }
  if (const int64_t rest = e.ranks % e.ranks_per_node; rest != 0) {
    const int64_t process = device_context_bytes(rest);  // with one plan, as in a run
    const RankPlan last(config, data, e.ranks, rest);
    e.last_node = {rest, last.arena().bytes() + process + last.kernel_bytes};
  }
  use_threads(runtime.threads());
  if (command.measure) {
    const std::unique_ptr<Trainer> measured = plan_trainer(config, data, communicator);
    check_plan(measured->plan(), config, communicator);
    check_host_memory(measured->pinned_bytes(), communicator);
    measured->reserve_disk(communicator);
    e.time = measured->measure(runtime);
  }
  std::string text;
  throw_on_all_ranks(communicator, [&] {
    if (communicator.rank() == 0) text = command.json ? estimate_json(e) : estimate_text(e);
  });
  if (communicator.rank() == 0) {
    print_notes(config);
    write_standard_output(text);
  }
  return 0;
}

void prepare_directory(const RunDirectory& directory, const Config& config, std::optional<ResumePoint>& from) {
  if (from && from->own) {
    directory.resume(write_deck(config));
  } else {
    directory.start(write_deck(config));
  }
  if (!from) return;
  for (const std::string& note : cut_back(directory.path(), *from)) from->notes.push_back(note);
}

/// Compares the files that the deck names with those of the run that it resumes. Returns them on rank 0. Collective.
std::vector<NamedContent> compare_or_collect_contents(const Config& config, const Dataset& data,
                                                      std::optional<ResumePoint>& from, Communicator& communicator) {
  std::vector<NamedContent> contents = data.contents;
  throw_on_all_ranks(communicator, [&] {
    if (communicator.rank() != 0) return;
    for (NamedContent& model : content_of_model(config)) contents.push_back(std::move(model));
    if (from) compare_contents(contents, *from);
  });
  return contents;
}

/// Checks that a finished run's files have the same content under the names in the current deck. Collective.
void check_finished(Config& config, const std::optional<RunDirectory>& directory, Communicator& communicator) {
  std::optional<ResumePoint> from = find_resume_point(config, RunDirectory::path_of(config), communicator);
  throw_on_all_ranks(communicator, [&] {
    if (!from && directory) directory->refuse_respelled();
  });
  compare_or_collect_contents(config, load_data(config, communicator, [](const std::string&) {}), from, communicator);
}

int train(const CommandLine& command, const std::string& deck_text, Config& config, Runtime& runtime) {
  Communicator& communicator = runtime.communicator();
  const bool root = communicator.rank() == 0;
  std::optional<RunDirectory> directory;
  if (open_directory(directory, config, communicator, [&] { check_finished(config, directory, communicator); }))
    return 0;
  StopMonitor stop_monitor(config, RunDirectory::path_of(config), root);
  watch_ranks(config, runtime);
  std::optional<ResumePoint> from = find_resume_point(config, RunDirectory::path_of(config), communicator);
  resolve_precision(config, agreed_fast_bf16(communicator));
  const std::string attention = attention_backend(attention_library(), config);
  agree_on_attention(attention, communicator);
  if (from) warn_if_backend_changed(*from, attention);
  examine(deck_text, command, communicator, !from);
  Console progress("", root);
  std::vector<std::string> earlier;
  const Dataset data = load_data(config, communicator, [&](const std::string& text) {
    progress.print(text);
    earlier.push_back(text);
  });
  std::vector<NamedContent> contents = compare_or_collect_contents(config, data, from, communicator);
  const std::unique_ptr<Trainer> trainer = plan_trainer(config, data, communicator);
  trainer->set_contents(std::move(contents));
  check_plan(trainer->plan(), config, communicator);
  check_host_memory(trainer->pinned_bytes(), communicator);
  trainer->reserve_disk(communicator);
  throw_on_all_ranks(communicator, [&] {
    if (root) prepare_directory(*directory, config, from);
  });
  RunLogOptions options = log_options(config, root ? &*directory : nullptr, trainer->plan(), communicator);
  options.earlier = earlier;
  options.total_steps = trainer->total_steps();
  if (const DataStream* validation = trainer->validation_data(); validation != nullptr) {
    options.evaluations_left = [&, total = options.total_steps](int64_t step) {
      return evaluations_from(config.evaluation, step, total);
    };
    // It has batches of a step's size, and the forward pass of a step, about a third of its work.
    options.evaluation_steps = static_cast<double>(first_steps(config.evaluation, *validation)) / 3;
  }
  options.flops_per_token = trainer->flops_per_token();
  options.optimum = data.optimum;
  if (from) {
    options.resumed = log_state(from->manifest);
    options.resumed_step = from->manifest.step;
  }
  std::optional<RunLog> log;
  throw_on_all_ranks(communicator, [&] { log.emplace(options); });
  print_opening(*log, config, *trainer, data, runtime);
  if (from) print_resume(*log, *from);
  if (trainer->train(runtime, *log, stop_monitor, from ? &*from : nullptr) == Trainer::Ended::stopped) {
    return static_cast<int>(ExitCode::stopped);
  }
  throw_on_all_ranks(communicator, [&] {
    if (root) directory->mark_finished(trainer->steps_done());
  });
  return 0;
}

/// Assumes that the job's nodes are like this one. The vocabulary may be unknown: the rest of the model is known.
void check_offload_here(Config& config, const Communicator& communicator) {
  if (!config.parallel.uses_disk() || config.run.task != RunConfig::Task::pretrain) return;
  ModelConfig model = config.model;
  const bool known = model.vocab_size > 0;
  if (!known) model.vocab_size = 1;
  int64_t bytes = 0;
  const auto units = make_model(model, model.vocab_size)->units();
  for (int rank = 0; rank < communicator.node_size(); ++rank) {
    ParamStoreOptions options = offload_options(config);
    options.rank = rank;
    options.size = communicator.size();
    bytes += ParamStore(units, options).offloaded_bytes();
  }
  const std::string where = config.provenance.where("parallel.offload_path");
  check_offload_folder(config.parallel.offload_path, bytes, where);
  if (known) return;
  config.notes.push_back(
      fmt::format("{}: {} ({} bytes) per node fit there, without the embeddings, whose vocabulary follows from the "
                  "text (--estimate reads it)",
                  where, bytes_text(static_cast<double>(bytes)), bytes));
}

/// Examines everything but the text itself, since reading a large corpus takes long.
int check(const std::string& text, const CommandLine& command, Communicator& communicator) {
  Config config = examine(text, command, communicator);
  if (communicator.rank() != 0) return 0;
  resolve_precision(config, bf16_products_are_fast());
  check_offload_here(config, communicator);
  print_notes(config);
  write_standard_output(write_deck(config));
  return 0;
}

}  // namespace

int run_program(const CommandLine& command, Runtime& runtime) {
  const std::string text = read_deck(command, runtime.communicator());
  if (command.check || command.estimate) {
    restore_default_signals();
  } else {
    keep_going_without_reader();
  }
  throw_on_all_ranks(runtime.communicator(), [] { attention_library(); });  // a requested library must be available
  if (command.check) return check(text, command, runtime.communicator());
  Config config = load(text, command, runtime.communicator());
  if (!config.checkpoint.signal_save) restore_default_signals();
  const bool plans = command.estimate && !command.measure;
  if (!plans && config.run.task != RunConfig::Task::tokenizer) runtime.start_device();
  Communicator& communicator = runtime.communicator();
  throw_if_stopping(communicator, "before it began");
  if (config.run.task == RunConfig::Task::tokenizer) {
    if (command.estimate) {
      throw UserError(ExitCode::command_line, "--estimate: run.task = tokenizer has no model to estimate");
    }
    examine(text, command, communicator);
    return run_tokenizer_task(config, runtime);
  }
  if (config.run.task == RunConfig::Task::evaluate) {
    if (command.measure) {
      throw UserError(ExitCode::command_line, "--measure: run.task = evaluate has no steps to time");
    }
    resolve_precision(config, agreed_fast_bf16(communicator));
    if (command.estimate) return estimate(command, text, config, runtime);
    return run_evaluation_task(config, runtime, [&] { examine(text, command, communicator); });
  }
  if (!command.estimate) return train(command, text, config, runtime);
  resolve_precision(config, agreed_fast_bf16(communicator));
  return estimate(command, text, config, runtime);
}

}  // namespace llmtrain
