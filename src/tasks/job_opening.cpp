#include "tasks/job_opening.hpp"

#include <fmt/format.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "kernels/matmul.hpp"
#include "system/peak.hpp"
#include "tasks/estimate/memory_limit.hpp"

namespace llmtrain {

void decide_compute(const Config& deck, RunFacts& facts, bool fast_bf16) {
  using Compute = PrecisionConfig::Compute;
  if (facts.compute == Compute::automatic) facts.compute = fast_bf16 ? Compute::bf16 : Compute::fp32;
  const bool wanted = facts.compute == Compute::tf32;
  if (!use_tf32(wanted) && wanted) {
    facts.add_note(deck.provenance.where("precision.compute") + ": this device has no tf32; products use fp32");
  }
  const ParallelConfig& parallel = deck.parallel;
  if (parallel.offload_parameters != Offload::none && parallel.offload_optimizer == Offload::none &&
      compute_dtype(facts.compute) != DType::f32) {
    facts.add_note(deck.provenance.where("parallel.offload_parameters") +
                   ": no effect without parallel.offload_optimizer, since weights are rounded from the masters");
  }
}

bool agreed_fast_bf16(Communicator& communicator) {
  int64_t fast = bf16_products_are_fast() ? 1 : 0;
  communicator.broadcast(&fast, sizeof(fast));
  return fast != 0;
}

void print_notes(std::span<const std::string> notes) {
  for (const std::string& note : notes) fmt::print(stderr, "{}\n", note);
}

namespace {

/// A variable by which a job script speaks; empty if it is not set.
std::string of_job_script(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

}  // namespace

JobOpening::JobOpening(Job& job, const FileCheck& check) : job_(job) {
  const RunConfig& run = job.deck.run;
  const bool root = communicator_.rank() == 0;
  int64_t finished = 0, renamed = 0;
  throw_on_all_ranks(communicator_, [&] {
    if (!root) return;
    directory_.emplace(run, comparison_with(job.deck));
    finished = directory_->found() == RunDirectory::Found::finished ? 1 : 0;
    renamed = finished != 0 && !directory_->renamed_files().empty() ? 1 : 0;
    if (renamed != 0 && check == nullptr) directory_->refuse_renamed_files();
  });
  communicator_.broadcast(&finished, sizeof(finished));
  communicator_.broadcast(&renamed, sizeof(renamed));
  if (renamed != 0) check(root ? &*directory_ : nullptr);
  if (finished == 0) {
    stop_monitor_.emplace(run, job.deck.checkpoint, root);
    watch_ranks();
    if (const std::string reason = of_job_script("LLMTRAIN_RESTART"); root && !reason.empty()) {
      print("restarted  " + reason);
    }
  } else if (root) {
    const std::string text = fmt::format(
        "{}: this run is finished. Give run.name=... to start another, or run.overwrite=true to run it again\n",
        run.directory());
    std::fputs(text.c_str(), stdout);
  }
}

void JobOpening::watch_ranks() {
  const WatchdogConfig& watchdog = job_.deck.watchdog;
  if (!watchdog.enabled) return;
  const auto seconds = [](Duration d) { return static_cast<double>(d.seconds); };
  job_.facts.add_note(job_.runtime.watch(
      {job_.deck.run.directory() + "/status",
       of_job_script("LLMTRAIN_LOST_NODES"),
       {seconds(watchdog.lost_after), seconds(watchdog.stuck_after), seconds(watchdog.io_stuck_after)},
       [] { return received_signal() == SIGTERM; }}));
}

void JobOpening::on_root(const std::function<void(RunDirectory&)>& work) {
  throw_on_all_ranks(communicator_, [&] {
    if (directory_) work(*directory_);
  });
}

void JobOpening::start_directory() {
  on_root([&](RunDirectory& directory) { directory.start(write_deck(job_.config())); });
}

void JobOpening::print(const std::string& text) {
  console_.print(text);
  earlier_.push_back(text);
}

RunLogOptions JobOpening::log_options(const Arena& plan) const {
  const Config config = job_.config();
  RunLogOptions options;
  options.run.directory = directory_ ? directory_->path() : "";
  options.run.name = config.run.name;
  options.run.settings = deck_settings(config);
  options.run.wandb = config.wandb;
  options.run.scales_loss = config.precision.compute == PrecisionConfig::Compute::fp16;
  options.run.ranks = communicator_.size();
  options.run.restart = of_job_script("LLMTRAIN_RESTART");
  options.active = communicator_.rank() == 0;
  options.every_steps = config.log.every_steps;
  options.every_first = config.log.every_first;
  options.sinks = config.log.sinks;
  options.earlier = earlier_;
  options.memory_bytes = plan.bytes();
  const int64_t ranks = ranks_of_device(communicator_);
  if (!device_memory_is_host()) {
    options.peak_flops = peak_flops(device_description(), name_of(config.precision.compute)) * communicator_.size() /
                         static_cast<double>(ranks);
  }
  options.memory_now = [ranks] { return device_process_bytes(ranks); };
  return options;
}

RunLog& JobOpening::open_log(const RunLogOptions& options) {
  throw_on_all_ranks(communicator_, [&] { log_.emplace(options); });
  return *log_;
}

void JobOpening::mark_finished(int64_t steps) {
  on_root([&](RunDirectory& directory) { directory.mark_finished(steps); });
}

}  // namespace llmtrain
