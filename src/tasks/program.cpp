#include "tasks/program.hpp"

#include <fmt/format.h>

#include <cstdlib>

#include "core/number_text.hpp"
#include "kernels/attention.hpp"
#include "methods/roles.hpp"
#include "metrics/console.hpp"
#include "models/models.hpp"
#include "parallel/job/cancellable_work.hpp"
#include "params/offload/offload_file.hpp"
#include "tasks/estimate/estimation.hpp"
#include "tasks/job_opening.hpp"
#include "tasks/parts.hpp"
#include "tasks/tasks.hpp"
#include "train/config/load_config.hpp"
#include "train/config/mesh_checks.hpp"
#include "train/config/model_path.hpp"
#include "train/run/run_directory.hpp"
#include "train/run/stop_monitor.hpp"

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

/// When a job is started again, run.overwrite must not replace the job's own earlier work: the command resumes.
void ignore_overwrite_after_requeue(RunFacts& facts, const RunConfig& run, Communicator& communicator) {
  const char* requeued = std::getenv("SLURM_RESTART_COUNT");
  const bool again = (requeued != nullptr && std::atoi(requeued) > 0) || std::getenv("LLMTRAIN_RESTART") != nullptr;
  if (!facts.overwrite) return;
  int64_t own = 0;
  if (communicator.rank() == 0 && again) {
    own = RunDirectory::started_by_this_job(run.directory()) ? 1 : 0;
  }
  communicator.broadcast(&own, sizeof(own));
  if (own == 0) return;
  facts.overwrite = false;
  facts.add_note("the job was started again: run.overwrite is ignored, and the run resumes");
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
  RunFacts facts(config);
  ignore_overwrite_after_requeue(facts, config.run, communicator);
  return with_facts(std::move(config), facts);
}

/// Assumes that the job's nodes are like this one. The vocabulary may be unknown: the rest of the model is known.
void check_offload_here(const Config& config, RunFacts& facts, const Communicator& communicator) {
  if (!config.parallel.uses_disk() || !task_rules(config.run.task).trains()) return;
  ModelConfig model = config.model;
  const bool known = model.vocab_size > 0;
  if (!known) model.vocab_size = 1;
  int64_t bytes = 0;
  const auto units = Decoder(trained_shape(config, model, model.vocab_size)).units();
  for (int rank = 0; rank < communicator.node_size(); ++rank) {
    bytes += ParamStore(units, trained_store_options(config, {rank, communicator.size(), 1})).offload().disk_bytes();
  }
  const std::string where = config.provenance.where("parallel.offload_path");
  check_offload_folder(config.parallel.offload_path, bytes, where);
  if (known) return;
  facts.add_note(
      fmt::format("{}: {} ({} bytes) per node fit there, without the embeddings, whose vocabulary follows from the "
                  "text (--estimate reads it)",
                  where, bytes_text(static_cast<double>(bytes)), bytes));
}

/// Examines everything but the training text itself, since reading a large corpus takes long. Prompts, rows of
/// evaluations and the models of their metrics are read; programs of rewards are tried.
RunFacts check_contents(const Config& deck, const Communicator& communicator) {
  RunFacts facts(deck);
  decide_compute(deck, facts, bf16_products_are_fast());
  const Config config = with_facts(deck, facts);
  check_offload_here(config, facts, communicator);
  check_scores(config);
  if (const TaskEntry& task = find_task(config.run.task); task.check != nullptr) task.check(config, facts);
  return facts;
}

int check(const std::string& text, const CommandLine& command, Communicator& communicator) {
  const Config deck = examine(text, command, communicator);
  throw_on_all_ranks(communicator, [&] {
    if (communicator.size() > 1) require_mesh(deck, communicator.size(), communicator.ranks_per_node());
    if (communicator.rank() != 0) return;
    const RunFacts facts = check_contents(deck, communicator);
    print_notes(facts.notes);
    write_standard_output(write_deck(with_facts(deck, facts)));
  });
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
  const Config config = load(text, command, runtime.communicator());
  const TaskEntry& task = find_task(config.run.task);
  if (!config.checkpoint.signal_save) restore_default_signals();
  const bool has_model = task.plan != nullptr, plans = command.estimate && !command.measure;
  if (has_model && !plans) {
    throw_on_all_ranks(runtime.communicator(), [&] {
      require_mesh(config, runtime.communicator().size(), runtime.communicator().ranks_per_node());
    });
  }
  if (!plans && has_model) runtime.start_device();
  Communicator& communicator = runtime.communicator();
  throw_if_stopping(communicator, "before it began");
  Job job{config, runtime, [&](bool weights) { examine(text, command, communicator, weights); }, RunFacts(config)};
  if (!command.estimate) return task.run(job);
  if (!has_model) {
    throw UserError(ExitCode::command_line,
                    fmt::format("--estimate: run.task = {} has no model to estimate", name_of(config.run.task)));
  }
  if (command.measure && task.measure == nullptr) {
    throw UserError(ExitCode::command_line,
                    fmt::format("--measure: run.task = {} has no steps to time", name_of(config.run.task)));
  }
  return run_estimation(command, job);
}

}  // namespace llmtrain
