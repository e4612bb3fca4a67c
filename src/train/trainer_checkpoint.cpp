// The part of the trainer that saves, resumes, and stops on request.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "checkpoint/checkpoint_reader.hpp"
#include "core/activity.hpp"
#include "core/clock.hpp"
#include "core/files/file_handle.hpp"
#include "core/philox.hpp"
#include "kernels/attention.hpp"
#include "kernels/reduce.hpp"
#include "text/files/tokenizer_files.hpp"
#include "train/run/job.hpp"
#include "train/run/version.hpp"
#include "train/run/run_directory.hpp"
#include "train/step_hook.hpp"
#include "train/trainer_run.hpp"

namespace llmtrain {
namespace {

constexpr size_t buffer_elements = size_t{1} << 18;

/// Fingerprint of the data, wherever they lie: numbers of tokens and documents, the tokenizer, the first and last ids.
uint64_t fingerprint(const TokenFile& file) {
  const TokenFileInfo& info = file.info();
  const int64_t tokens = file.tokens(), some = std::min<int64_t>(tokens, 1 << 16);
  std::vector<int32_t> ids(static_cast<size_t>(2 * some));
  file.read(0, some, ids.data());
  file.read(tokens - some, some, ids.data() + some);
  const std::string facts = fmt::format("{} {} {} {} {}", tokens, file.documents().size(), info.vocabulary_size,
                                        info.eos_id, info.tokenizer_hash);
  StreamHash hash;
  hash.update(facts.data(), facts.size());
  hash.update(ids.data(), ids.size() * sizeof(int32_t));
  return hash.digest().low >> 1;  // a checkpoint's counters are not negative
}

std::string hash_text(uint64_t hash) { return fmt::format("{:016x}", hash); }

/// Counter names of the best values by a metric. (Those of the loss keep their original names.)
struct BestNames {
  explicit BestNames(CheckpointConfig::Metric metric) {
    if (metric == CheckpointConfig::Metric::loss) return;
    best = "best_negative_token_accuracy";
    reference = "early_stopping_negative_token_accuracy";
  }
  const char* best = "best_validation";
  const char* reference = "early_stopping_reference";
};

template <class Map, class T>
void take(const Map& from, const char* name, T& field) {
  if (const auto found = from.find(name); found != from.end()) field = found->second;
}

}  // namespace

/// True if every run of the deck has this checkpoint, whatever interrupts it.
bool Trainer::is_scheduled(const Run& run, int64_t completed) const {
  return !run.pending.evaluation && due(config_.checkpoint.every_steps, completed);
}

uint64_t Trainer::parameter_hash(Run& run) {
  std::vector<uint64_t>& hashes = run.unit_hashes;
  hashes.assign(static_cast<size_t>(params_.unit_count()), 0);
  for (ParamStore::StatePass pass(params_, ParamStore::Access::masters); pass.next();) {
    const ParamStore::Shard& shard = pass.shard();
    const UnitRange owned = shard.part_of(params_.owned(pass.unit()));
    if (owned.begin >= owned.end) continue;
    const Tensor part = shard.master.rows(owned.begin - shard.begin, owned.end - owned.begin);
    hashes[static_cast<size_t>(pass.unit())] += chunked_hash(part, owned.begin, run.ctx.stream);
  }
  run.runtime.communicator().sum(hashes);
  uint64_t all = 0;
  for (uint64_t h : hashes) {  // the order matters, so that units of equal content do not cancel
    const Philox4 mixed = philox4x32(all, h, 0);
    all = (uint64_t{mixed.v[1]} << 32) | mixed.v[0];
  }
  return all;
}

uint64_t Trainer::hash_after(Run& run, int64_t completed) {
  if (run.hashed.first != completed) run.hashed = {completed, parameter_hash(run)};
  return run.hashed.second;
}

int64_t Trainer::restore(Run& run, const ResumePoint& from) {
  const SectionScope section(Section::resuming);
  params_.finish_update();
  Communicator& communicator = run.runtime.communicator();
  const Manifest& manifest = from.manifest;
  const RunState& saved = manifest.run;
  throw_on_all_ranks(communicator, [&] {
    int64_t data = static_cast<int64_t>(run.data);
    take(saved.counters, "data_fingerprint", data);
    if (communicator.rank() == 0 && static_cast<uint64_t>(data) != run.data) {
      throw UserError(ExitCode::bad_content,
                      fmt::format("{}: the run was trained on different data than data.train has now. Restore the old "
                                  "data, or start a new run with another run.name",
                                  from.path));
    }
  });
  run.hashed = {-1, 0};
  run.best = run.reference = std::numeric_limits<double>::infinity();
  run.best_step = run.best_saved = -1;
  run.without_improvement = 0;
  std::vector<float> buffer(buffer_elements);
  StoreState state(params_, run.ctx.stream);
  load_checkpoint(from.path, manifest, state, buffer, communicator);
  const int64_t completed = manifest.step;
  const uint64_t hash = hash_after(run, completed);
  throw_on_all_ranks(communicator, [&] {
    if (saved.parameters.empty() || saved.parameters == hash_text(hash)) return;
    throw UserError(ExitCode::bad_content, fmt::format("{}: the hash of the parameters is {} instead of {}: the memory "
                                                       "or disk of this machine is not reliable; exclude the node",
                                                       from.path, hash_text(hash), saved.parameters));
  });
  const BestNames names(config_.checkpoint.best_metric);
  const bool same_metric = saved.values.contains(names.best);
  if (from.own) take(saved.values, names.best, run.best);
  take(saved.values, names.reference, run.reference);
  if (same_metric) take(saved.counters, "without_improvement", run.without_improvement);
  run.pending = {is_pending(saved, pending_evaluation), is_pending(saved, pending_samples)};
  const int64_t patience = config_.evaluation.early_stopping_patience;
  run.stop = patience > 0 && run.without_improvement >= patience;
  run.guard.restore(saved, from.own);
  if (saved.values.contains("loss_scale")) {
    LossScaleState scaling;
    take(saved.values, "loss_scale", scaling.scale);
    take(saved.counters, "loss_scale_clean_steps", scaling.clean_steps);
    take(saved.counters, "loss_scale_overflows_left", scaling.overflows_left);
    take(saved.counters, "skipped_steps", scaling.skipped_steps);
    run.scaler.restore(scaling);
  }
  if (!from.own) {
    run.start_path = from.path;
    return completed;
  }
  if (same_metric) take(saved.counters, "best_step", run.best_step);
  if (same_metric) take(saved.counters, "best_saved", run.best_saved);
  run.saved_step = completed;
  run.saved_pending_evaluation = run.pending.evaluation;
  if (run.guard.target() < 0) run.guard.saved(completed, is_scheduled(run, completed), run.best_saved);
  run.saver->set_pinned({run.best_saved, run.guard.target(), run.guard.best_of_target()});
  return completed;
}

void Trainer::save(Run& run, int64_t completed, double since) {
  const SectionScope section(Section::saving);
  SaveRequest request;
  request.step = completed;
  const std::string version = version_text();
  request.program = version.substr(0, version.find('\n'));
  request.best = run.best_step == completed;
  request.from_disk = config_.checkpoint.verify;
  if (request.best) run.best_saved = completed;
  const uint64_t hash = hash_after(run, completed);
  LogState log;
  throw_on_all_ranks(run.runtime.communicator(), [&] {
    log = run.log.save();
    if (run.runtime.communicator().rank() != 0) return;
    const FileHandle ledger = FileHandle::open_to_read(RunDirectory::path_of(config_) + "/ledger.jsonl");
    const CheckpointFile digest = digest_file(ledger, "ledger.jsonl");
    request.ledger_bytes = digest.bytes;
    request.ledger_hash = digest.hash;
    request.deck = write_deck(config_);
    request.texts = run.kept_texts;
    if (tokenizer_) request.texts[stored_tokenizer_name] = tokenizer_->serialized();
  });
  request.run.counters = std::move(log.counters);
  request.run.values = std::move(log.values);
  request.run.counters["data_fingerprint"] = static_cast<int64_t>(run.data);
  request.run.counters["without_improvement"] = run.without_improvement;
  if (run.best_step >= 0) request.run.counters["best_step"] = run.best_step;
  if (run.best_saved >= 0) request.run.counters["best_saved"] = run.best_saved;
  const BestNames names(config_.checkpoint.best_metric);
  request.run.values[names.best] = run.best;
  request.run.values[names.reference] = run.reference;
  request.run.parameters = hash_text(hash);
  request.run.contents = contents_;
  request.run.attention = attention_backend(attention_library(), config_);
  if (run.pending.evaluation) request.run.counters[pending_evaluation] = 1;
  if (run.pending.samples) request.run.counters[pending_samples] = 1;
  run.guard.saved(completed, is_scheduled(run, completed), run.best_saved);
  run.guard.save(request.run);
  if (run.scaler.active()) {
    const LossScaleState& scaling = run.scaler.state();
    request.run.values["loss_scale"] = scaling.scale;
    request.run.counters["loss_scale_clean_steps"] = scaling.clean_steps;
    request.run.counters["loss_scale_overflows_left"] = scaling.overflows_left;
    request.run.counters["skipped_steps"] = scaling.skipped_steps;
  }
  run.saver->begin(request, since);  // publishes the previous save, with its pins
  run.saver->set_pinned({run.best_saved, run.guard.target(), run.guard.best_of_target()});
  if (!config_.checkpoint.asynchronous) run.saver->finish();
  run.saved_step = completed;
  run.saved_pending_evaluation = run.pending.evaluation;
  run.stop_monitor.saved();
}

Trainer::Requests Trainer::agree_on_requests(Run& run) {
  Saver& saver = *run.saver;
  // A unit of work of an evaluation takes less than a step.
  const StopMonitor::Request requested = run.stop_monitor.requested(2 * (run.step_seconds + saver.seconds()));
  int64_t facts[] = {requested.stop, requested.save, saver.written() ? 0 : 1, saver.failed() ? 1 : 0};
  run.runtime.communicator().maximum(facts);
  if (saver.under_way() && facts[3] != 0) saver.finish();
  if (saver.under_way() && facts[2] == 0) saver.advance();
  return {facts[0], facts[1]};
}

int64_t Trainer::stop_requested(Run& run, int64_t completed) {
  if (stop_poll_hook != nullptr) stop_poll_hook(run.pending.evaluation, run.runtime.communicator().rank());
  const Requests requests = agree_on_requests(run);
  const bool save_now = requests.save != 0 && requests.stop == 0 && completed > 0 && completed != run.saved_step;
  const double begin = now();
  if (save_now && state_is_finite(run)) save(run, completed, begin);
  return requests.stop;
}

int64_t Trainer::save_if_due(Run& run, int64_t& completed, int64_t stop) {
  const Requests requests = agree_on_requests(run);
  if (stop == 0) stop = requests.stop;
  if (run.pending_step && (stop != 0 || requests.save != 0)) {
    finish_pending_step(run);
    if (run.guard.must_roll_back()) return 0;  // the rollback comes first; the request will be repeated
  }
  const bool evaluated = !run.pending.evaluation;
  const bool end = evaluated && (completed >= total_steps_ || run.stop);
  const bool scheduled = evaluated && due(config_.checkpoint.every_steps, completed) && run.guard.sound();
  const bool best = evaluated && run.best_step == completed && config_.needs_best();
  const bool wanted = best || requests.save != 0 || stop != 0 || scheduled || (end && config_.checkpoint.at_end);
  const bool saved = completed == run.saved_step && !(evaluated && run.saved_pending_evaluation);
  if ((completed > 0 || best) && !saved && (wanted || end)) {
    const double begin = now();
    const bool finite = state_is_finite(run);
    if (finite && wanted) save(run, completed, begin);
    if (!finite && (scheduled || end)) {
      run.guard.mark_lost(completed, "the parameters or moments are not finite");
      completed = roll_back(run, completed);
      return stop;
    }
    if (!finite) {  // a request does not cause a rollback, so that it does not change the run
      run.log.warn(fmt::format("step {}: the parameters or moments are not finite, and are not saved", completed));
    }
  }
  return end && !run.pending.samples ? 0 : stop;
}

void Trainer::start_run(Run& run, const ResumePoint* from) {
  Communicator& communicator = run.runtime.communicator();
  std::span<float> copy;
  if (!state_copy_.empty()) {
    copy = {state_copy_.as<float>(), static_cast<size_t>(copied_elements_)};
  } else if (copied_elements_ > 0) {
    run.host_copy = PinnedBuffer(copied_elements_ * state_bytes);
    copy = {static_cast<float*>(run.host_copy.data()), static_cast<size_t>(copied_elements_)};
  }
  run.saver.emplace(config_.checkpoint, RunDirectory::path_of(config_) + "/checkpoints", params_, run.ctx.stream, copy,
                    communicator, run.log, from);
  throw_on_all_ranks(communicator, [&] {
    if (communicator.rank() == 0) run.data = fingerprint(*train_source_);
  });
}

}  // namespace llmtrain
