#include "train/run_checkpoints.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "checkpoint/checkpoint_reader.hpp"
#include "core/activity.hpp"
#include "core/clock.hpp"
#include "core/files/file_handle.hpp"
#include "core/files/folder_handle.hpp"
#include "text/load_tokenizer.hpp"
#include "train/run/version.hpp"
#include "train/step_hook.hpp"

namespace llmtrain {
namespace {

constexpr const char* stored_rollout_name = "rollout.bin";
constexpr int64_t max_rollout_bytes = int64_t{16} << 30;
constexpr size_t buffer_elements = size_t{1} << 18;

/// Fingerprint of the data, wherever they lie: numbers of tokens and documents, the tokenizer, the first and last ids
/// and, if there is one, their mask.
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
  if (info.has_mask) {
    std::vector<uint8_t> mask(ids.size());
    file.read_mask(0, some, mask.data());
    file.read_mask(tokens - some, some, mask.data() + some);
    hash.update(mask.data(), mask.size());
  }
  return hash.digest().low >> 1;  // a checkpoint's counters are not negative
}

std::string hash_text(uint64_t hash) { return fmt::format("{:016x}", hash); }

}  // namespace

RunCheckpoints::RunCheckpoints(const RunContext& run, ParameterHash& hash, StopMonitor& stop_monitor,
                               CheckpointOptions options)
    : plan_(run.plan),
      progress_(run.progress),
      hash_(hash),
      communicator_(run.runtime.communicator()),
      stream_(run.runtime.stream()),
      log_(run.log),
      stop_monitor_(stop_monitor),
      options_(std::move(options)) {
  std::span<uint8_t> copy;
  const int64_t copied = plan_.copied_bytes;
  if (!plan_.state_copy.empty()) {
    copy = {plan_.state_copy.as<uint8_t>(), static_cast<size_t>(copied)};
  } else if (copied > 0) {
    host_copy_ = PinnedBuffer(copied);
    copy = {static_cast<uint8_t*>(host_copy_.data()), static_cast<size_t>(copied)};
  }
  saver_.emplace(options_.config, folder(), plan_.params(), stream_, copy, communicator_, log_, options_.from);
  throw_on_all_ranks(communicator_, [&] {
    if (communicator_.rank() == 0) data_ = fingerprint(*plan_.train_source);
  });
}

bool RunCheckpoints::is_scheduled(int64_t completed) const {
  const int64_t every = options_.config.every_steps;
  return !progress_.pending.evaluation && every > 0 && completed % every == 0;
}

void RunCheckpoints::pin() {
  saver_->set_pinned(
      {best_saved_, progress_.guard.target(), progress_.guard.best_of_target(), trusted_.trusted, trusted_.best});
}

void RunCheckpoints::store_replay_state(const ReplayState& state) {
  on_root(communicator_, [&] { write_replay_state(options_.directory, state); });
}

void RunCheckpoints::trust_saved() {
  const ReplayState saved{saved_step_, best_saved_};
  if (saved == trusted_) return;
  trusted_ = saved;
  pin();
  store_replay_state(trusted_);
}

void RunCheckpoints::set_suspects_aside(const std::vector<NodeNotice>& notices) {
  saver_->finish();
  ReplayState state = trusted_;
  state.sets_aside = true;
  state.notices = notices;
  store_replay_state(state);
  on_root(communicator_, [&] { llmtrain::set_suspects_aside(options_.directory); });
}

std::vector<NodeNotice> RunCheckpoints::take_notices() {
  std::vector<NodeNotice> notices;
  if (!options_.replays) return notices;
  on_root(communicator_, [&] {
    const ReplayState stored = read_replay_state(options_.directory);
    if (stored != trusted_) write_replay_state(options_.directory, trusted_);
    notices = stored.notices;
  });
  return notices;
}

int64_t RunCheckpoints::restore(const ResumePoint& from) {
  const SectionScope section(Section::resuming);
  ParamStore& params = plan_.params();
  params.finish_update();
  const Manifest& manifest = from.manifest;
  const RunState& saved = manifest.run;
  throw_on_all_ranks(communicator_, [&] {
    int64_t data = static_cast<int64_t>(data_);
    take(saved.counters, "data_fingerprint", data);
    if (communicator_.rank() == 0 && static_cast<uint64_t>(data) != data_) {
      throw UserError(ExitCode::bad_content,
                      fmt::format("{}: the run was trained on different data than data.train has now, or with another "
                                  "chat template or mask. Restore the old "
                                  "data, or start a new run with another run.name",
                                  from.path));
    }
  });
  const std::optional<FrozenWeights>& frozen = plan_.models.at(Role::policy).frozen_weights();
  throw_on_all_ranks(communicator_, [&] {
    if (frozen && manifest.frozen) require_same(*manifest.frozen, *frozen, from.path);
  });
  hash_.forget();
  best_saved_ = -1;
  std::vector<float> buffer(buffer_elements);
  StoreState state(params, stream_);
  load_checkpoint(from.path, manifest, state, buffer, communicator_);
  if (plan_.sync) plan_.sync->restore(communicator_, stream_);
  const int64_t completed = manifest.step;
  const uint64_t hash = hash_.after(completed);
  throw_on_all_ranks(communicator_, [&] {
    if (saved.parameters.empty() || saved.parameters == hash_text(hash)) return;
    throw UserError(ExitCode::bad_content, fmt::format("{}: the hash of the parameters is {} instead of {}: the memory "
                                                       "or disk of this machine is not reliable; exclude the node",
                                                       from.path, hash_text(hash), saved.parameters));
  });
  const bool same_metric = progress_.restore(saved, from.own);
  restore_rollout(from);
  if (!from.own) {
    start_path_ = from.path;
    return completed;
  }
  if (same_metric) take(saved.counters, "best_saved", best_saved_);
  saved_step_ = completed;
  saved_pending_evaluation_ = progress_.pending.evaluation;
  if (progress_.guard.target() < 0) progress_.guard.saved(completed, is_scheduled(completed), best_saved_);
  if (options_.replays) restore_trusted();
  pin();
  return completed;
}

/// The checkpoint that the run resumes from is trusted if a later one was.
void RunCheckpoints::restore_trusted() {
  std::array<int64_t, 2> steps = {-1, -1};
  on_root(communicator_, [&] {
    const ReplayState stored = read_replay_state(options_.directory);
    steps = {stored.trusted, stored.best};
  });
  communicator_.broadcast(steps.data(), sizeof steps);
  trusted_ = steps[0] < saved_step_ ? ReplayState{steps[0], steps[1]} : ReplayState{saved_step_, best_saved_};
}

void RunCheckpoints::restore_rollout(const ResumePoint& from) {
  BatchSource& batches = plan_.batches();
  if (!batches.has_state()) return;
  const bool stored = std::ranges::any_of(from.manifest.files,
                                          [](const CheckpointFile& file) { return file.name == stored_rollout_name; });
  if (!stored && !from.own) return batches.reset();  // a checkpoint of another task
  const std::string& checkpoint = from.path;
  const std::string file = checkpoint + "/" + stored_rollout_name;
  std::string bytes;
  throw_on_all_ranks(communicator_, [&] {
    if (communicator_.rank() != 0) return;
    bytes = FolderHandle::open(checkpoint).open_to_read(stored_rollout_name).read_text(max_rollout_bytes);
  });
  communicator_.broadcast(bytes);
  try {
    batches.restore(bytes, progress_.guard.data_step(from.manifest.step), file);
  } catch (const UserError& error) {  // the same on all ranks
    if (from.own) throw;
    log_.warn(fmt::format("{}; the run begins with a new rollout", error.what()));
    batches.reset();
  }
}

void RunCheckpoints::save(int64_t completed, double since) {
  const SectionScope section(Section::saving);
  SaveRequest request;
  request.step = completed;
  const std::string version = version_text();
  request.program = version.substr(0, version.find('\n'));
  request.best = progress_.best.step() == completed;
  request.from_disk = options_.config.verify;
  if (request.best) best_saved_ = completed;
  const uint64_t hash = hash_.after(completed);
  LogState log;
  throw_on_all_ranks(communicator_, [&] {
    log = log_.save();
    if (communicator_.rank() != 0) return;
    const FileHandle ledger = FileHandle::open_to_read(options_.directory + "/ledger.jsonl");
    const CheckpointFile digest = digest_file(ledger, "ledger.jsonl");
    request.ledger_bytes = digest.bytes;
    request.ledger_hash = digest.hash;
    request.deck = options_.deck;
    request.texts = options_.texts;
    if (plan_.tokenizer) request.texts[stored_tokenizer_name] = plan_.tokenizer->serialized();
    const BatchSource& batches = plan_.batches();
    if (batches.has_state()) request.texts[stored_rollout_name] = batches.save(progress_.guard.data_step(completed));
  });
  request.run.counters = std::move(log.counters);
  request.run.values = std::move(log.values);
  request.run.counters["data_fingerprint"] = static_cast<int64_t>(data_);
  if (best_saved_ >= 0) request.run.counters["best_saved"] = best_saved_;
  request.run.parameters = hash_text(hash);
  request.run.contents = options_.contents;
  request.run.attention = options_.attention;
  request.run.products = options_.products;
  request.frozen = plan_.models.at(Role::policy).frozen_weights();
  progress_.guard.saved(completed, is_scheduled(completed), best_saved_);
  progress_.save(request.run);
  saver_->begin(request, since);  // publishes the previous save, with its pins
  pin();
  if (!options_.config.asynchronous) saver_->finish();
  saved_step_ = completed;
  saved_pending_evaluation_ = progress_.pending.evaluation;
  stop_monitor_.saved();
}

RunCheckpoints::Requests RunCheckpoints::agree_on_requests(double step_seconds) {
  Saver& saver = *saver_;
  // A unit of work of an evaluation takes less than a step.
  const StopMonitor::Request requested = stop_monitor_.requested(2 * (step_seconds + saver.seconds()));
  int64_t facts[] = {requested.stop, requested.save, saver.written() ? 0 : 1, saver.failed() ? 1 : 0};
  communicator_.maximum(facts);
  if (saver.is_saving() && facts[3] != 0) saver.finish();
  if (saver.is_saving() && facts[2] == 0) saver.advance();
  return {facts[0], facts[1]};
}

int64_t RunCheckpoints::stop_requested(int64_t completed, double step_seconds) {
  if (stop_poll_hook != nullptr) stop_poll_hook(progress_.pending.evaluation, communicator_.rank());
  const Requests requests = agree_on_requests(step_seconds);
  const bool save_now = requests.save != 0 && requests.stop == 0 && completed > 0 && completed != saved_step_;
  const double begin = now();
  if (save_now && state_is_finite(plan_.params(), communicator_, stream_)) save(completed, begin);
  return requests.stop;
}

bool RunCheckpoints::save_if_due(int64_t completed, const Requests& requests, bool ends) {
  const bool evaluated = !progress_.pending.evaluation;
  const bool scheduled = is_scheduled(completed) && progress_.guard.sound();
  const bool best = evaluated && progress_.best.step() == completed && options_.needs_best;
  const bool wanted = best || requests.save != 0 || requests.stop != 0 || scheduled || (ends && options_.config.at_end);
  const bool saved = completed == saved_step_ && !(evaluated && saved_pending_evaluation_);
  if ((completed == 0 && !best) || saved || !(wanted || ends)) return true;
  const double begin = now();
  if (state_is_finite(plan_.params(), communicator_, stream_)) {
    if (wanted) save(completed, begin);
    return true;
  }
  if (scheduled || ends) {
    progress_.guard.mark_lost(completed, "the parameters or moments are not finite");
  } else {  // a request does not cause a rollback, so that it does not change the run
    log_.warn(fmt::format("step {}: the parameters or moments are not finite, and are not saved", completed));
  }
  return false;
}

}  // namespace llmtrain
