// Tasks that train a model.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <optional>

#include "core/number_text.hpp"
#include "data/files/data_sources.hpp"
#include "kernels/attention.hpp"
#include "metrics/console.hpp"
#include "params/offload_file.hpp"
#include "tasks/tasks.hpp"
#include "train/evaluate.hpp"
#include "train/run/job.hpp"
#include "train/run/resume.hpp"
#include "train/run/run_directory.hpp"
#include "train/run/stop_monitor.hpp"
#include "train/trainer.hpp"

namespace llmtrain {

namespace {

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

void print_opening(RunLog& log, const Config& config, const TrainingPlan& plan, const Dataset& data, Runtime& runtime) {
  Communicator& c = runtime.communicator();
  const DataStream& stream = plan.train;
  const ParamStore& params = plan.params();
  const int64_t ranks = c.size();
  print_machine(log, config, runtime);
  const int64_t parameters = params.parameter_count(), trained = params.trained_parameter_count();
  print_model(log, config, parameters, trained < parameters ? std::optional(trained) : std::nullopt);
  log.print(fmt::format(
      "plan       ZeRO {}, micro-batch {}, global batch {} x {} tokens, {} accumulation steps, {} reduction "
      "group{}",
      config.parallel.zero, config.batch.micro, config.batch.global, config.batch.sequence_length,
      config.batch.gradient_accumulation_steps, plan.groups.count, plan.groups.count == 1 ? "" : "s"));
  print_memory(log, plan.arena, c);
  print_offload(log, config, params.offloaded_bytes(), params.pinned_bytes());
  log.print(fmt::format("data       {} tokens, {} samples, {} steps an epoch; {:.2f} epochs in {} steps",
                        count_text(data.train->tokens()), count_text(stream.samples()),
                        count_text(stream.steps_per_epoch()),
                        static_cast<double>(plan.total_steps) / static_cast<double>(stream.steps_per_epoch()),
                        count_text(plan.total_steps)));
  print_rows(log, data);
  print_sources(log, config, stream, plan.total_steps);
  if (data.validation != nullptr) log.print(fmt::format("validation {} tokens", count_text(data.validation->tokens())));
  log.print(fmt::format("results    {}", RunDirectory::path_of(config)));
  if (plan.groups.count < ranks) {
    log.warn(
        fmt::format("{} of {} ranks have no reduction group: they own shards but compute nothing. Use a larger "
                    "batch.global, a smaller batch.micro or fewer ranks",
                    ranks - plan.groups.count, ranks));
  }
  warn_of_rows(log, data);
  warn_of_missing_targets(log, stream, c);
  print_warnings(log, config, runtime);
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

/// Ranks of a node share memory if there is room for it; a note says why they do not.
std::unique_ptr<Trainer> plan_trainer(Config& config, const Dataset& data, Communicator& communicator) {
  std::unique_ptr<Trainer> trainer;
  const auto plan = [&](int node_size) {
    throw_on_all_ranks(communicator, [&] {
      trainer =
          std::make_unique<Trainer>(config, data, RankPosition{communicator.rank(), communicator.size(), node_size});
    });
  };
  plan(communicator.sharing_ranks());
  const std::string refusal = communicator.sharing_refusal(trainer->plan().arena.shared_bytes());
  if (!refusal.empty()) {
    config.notes.push_back(refusal);
    plan(1);
  }
  return trainer;
}

class TrainingRankPlan : public RankPlan {
 public:
  TrainingRankPlan(const Config& config, const Dataset& data, int rank, int size, int node_size)
      : plan_(config, data, {rank, size, node_size}) {}
  const Arena& arena() const override { return plan_.arena; }
  int64_t parameters() const override { return plan_.params().parameter_count(); }
  int64_t trained_parameters() const override { return plan_.params().trained_parameter_count(); }
  int64_t state_bytes() const override { return plan_.params().state_bytes(); }
  int64_t offloaded_bytes() const override { return plan_.params().offloaded_bytes(); }
  int64_t pinned_bytes() const override { return plan_.params().pinned_bytes(); }

 private:
  TrainingPlan plan_;
};

}  // namespace

Prediction measure_training(Job& job, const Dataset& data) {
  Communicator& communicator = job.runtime.communicator();
  const std::unique_ptr<Trainer> trainer = plan_trainer(job.config, data, communicator);
  check_plan(trainer->plan().arena, job.config, communicator);
  check_host_memory(trainer->plan().params().pinned_bytes(), communicator);
  trainer->reserve_disk(communicator);
  return trainer->measure(job.runtime);
}

std::unique_ptr<RankPlan> plan_training(const Config& config, const Dataset& data, int rank, int size, int node_size) {
  return std::make_unique<TrainingRankPlan>(config, data, rank, size, node_size);
}

int run_training(Job& job) {
  Config& config = job.config;
  Runtime& runtime = job.runtime;
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
  job.examine(!from);
  Console progress("", root);
  std::vector<std::string> earlier;
  const Dataset data = load_data(config, communicator, [&](const std::string& text) {
    progress.print(text);
    earlier.push_back(text);
  });
  std::vector<NamedContent> contents = compare_or_collect_contents(config, data, from, communicator);
  const std::unique_ptr<Trainer> trainer = plan_trainer(config, data, communicator);
  const TrainingPlan& plan = trainer->plan();
  check_plan(plan.arena, config, communicator);
  check_host_memory(plan.params().pinned_bytes(), communicator);
  trainer->reserve_disk(communicator);
  throw_on_all_ranks(communicator, [&] {
    if (root) prepare_directory(*directory, config, from);
  });
  RunLogOptions options = log_options(config, root ? &*directory : nullptr, plan.arena, communicator);
  options.earlier = earlier;
  options.total_steps = plan.total_steps;
  if (plan.validation) {
    options.evaluations_left = [&, total = options.total_steps](int64_t step) {
      return evaluations_from(trainer->config().evaluation, step, total);
    };
    // It has batches of a step's size, and the forward pass of a step, about a third of its work.
    options.evaluation_steps = static_cast<double>(first_steps(trainer->config().evaluation, *plan.validation)) / 3;
  }
  options.flops_per_token = trainer->flops_per_token();
  options.optimum = data.optimum;
  if (from) {
    options.resumed = log_state(from->manifest);
    options.resumed_step = from->manifest.step;
  }
  std::optional<RunLog> log;
  throw_on_all_ranks(communicator, [&] { log.emplace(options); });
  print_opening(*log, config, plan, data, runtime);
  if (from) print_resume(*log, *from);
  if (trainer->train(runtime, *log, stop_monitor, from ? &*from : nullptr, std::move(contents)) ==
      Trainer::Ended::stopped) {
    return static_cast<int>(ExitCode::stopped);
  }
  throw_on_all_ranks(communicator, [&] {
    if (root) directory->mark_finished(trainer->steps_done());
  });
  return 0;
}

}  // namespace llmtrain
