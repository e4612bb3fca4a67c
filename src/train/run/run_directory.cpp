#include "train/run/run_directory.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <thread>

#include "checkpoint/checkpoint_folder.hpp"
#include "checkpoint/checkpoint_reader.hpp"
#include "core/error.hpp"
#include "core/files/file_handle.hpp"
#include "core/files/whole_file.hpp"
#include "core/machine.hpp"
#include "parallel/job/status_board.hpp"
#include "train/run/suspects.hpp"

namespace llmtrain {

namespace {

namespace fs = std::filesystem;

/// Everything that this program writes into a run directory; run.overwrite removes these and nothing else. (`restarts`,
/// by jobs/train.sbatch, and excluded_nodes are not among them: they must outlive the removal.)
constexpr std::array<const char*, 22> own_names = {"begun.json",
                                                   "evaluation.json",
                                                   "evaluation_rows.jsonl",
                                                   "generations.jsonl",
                                                   "generations.hashes",
                                                   "tokenizer.json",
                                                   "tokenizer_config.json",
                                                   "deck.ini",
                                                   "ledger.jsonl",
                                                   "metrics.jsonl",
                                                   "metrics.h5",
                                                   "metrics.h5.tmp",
                                                   "log.txt",
                                                   "dashboard.log",
                                                   "finished.json",
                                                   "tensorboard",
                                                   "wandb",
                                                   "report",
                                                   "checkpoints",
                                                   "export",
                                                   "adapter",
                                                   "trace.json"};

/// Job id; empty outside Slurm.
std::string own_job() {
  const char* job = std::getenv("SLURM_JOB_ID");
  return job != nullptr ? job : "";
}

/// True if this process follows one of its own Slurm job, which the job's script has ended or given up as lost.
bool follows_lost_owner(const std::string& owner) {
  return std::getenv("LLMTRAIN_RESTART") != nullptr && !own_job().empty() && owner.ends_with(", job " + own_job());
}

std::string owner_of_this_job() {
  const std::string job = own_job();
  return fmt::format("host {}, process {}{}", host_name(), getpid(), job.empty() ? "" : ", job " + job);
}

/// Removes what a run has written. Event files stay, empty: a TensorBoard that shows the run looks for the next file
/// after the one it reads, and shows nothing new once that is gone.
void remove_own(const fs::path& path, std::error_code& error) {
  if (path.filename() != "tensorboard" || !fs::is_directory(fs::symlink_status(path, error))) {
    fs::remove_all(path, error);
    return;
  }
  for (fs::directory_iterator entry(path, error), end; !error && entry != end; entry.increment(error)) {
    if (entry->is_regular_file() && entry->path().filename().string().starts_with("events.out.tfevents.")) {
      fs::resize_file(entry->path(), 0, error);
    } else {
      fs::remove_all(entry->path(), error);
    }
    if (error) return;
  }
}

[[noreturn]] void refuse_owner(const std::string& path, const std::string& owner) {
  throw UserError(
      ExitCode::cannot_create,
      fmt::format("{}: another job owns this run ({}). Wait for its end, or choose another run.name", path, owner));
}

// An owner on another node whose status file is older than this is assumed dead; clocks of nodes may differ by less.
constexpr std::chrono::duration<double> longest_silence = std::chrono::minutes(5);

/// Number of nodes whose statuses lie in the folder.
int64_t status_files(const std::string& folder) {
  int64_t count = 0;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    if (entry->path().filename().string().starts_with("rank-")) ++count;
  }
  return count;
}

}  // namespace

RunDirectory::RunDirectory(const RunConfig& run, const DeckComparison& compare)
    : path_(run.directory()), overwrites_(run.overwrite) {
  std::error_code error;
  const bool ours = fs::exists(path_ + "/lock", error);
  for (const char* name : own_names) {
    if (ours || !fs::exists(path_ + "/" + name, error)) continue;
    throw UserError(ExitCode::cannot_create, fmt::format("{}: the run would replace {}, which was not written by a "
                                                         "run. Choose another run.name or run.output, or move it away",
                                                         path_, name));
  }
  if (!run.overwrite && is_finished(run.max_steps, compare)) {
    found_ = Found::finished;
    return;
  }
  fs::create_directories(path_, error);
  if (error) fail_to_create(path_, "cannot be created", error.value());
  lock();
  if (run.overwrite) return;
  if (fs::exists(checkpoints(), error) && access(checkpoints().c_str(), W_OK | X_OK) != 0) {
    fail_to_create(checkpoints(), "checkpoints cannot be saved", errno);
  }
  restore_replaced(checkpoints());
  set_suspects_aside(path_);
  if (!published_steps(checkpoints()).empty()) {
    found_ = Found::resumable;
  } else if (fs::exists(path_ + "/ledger.jsonl", error)) {
    refuse_another_deck(compare, "an unfinished run without a checkpoint");
  }
}

/// Returns true if the mark exists, and the checkpoint of the last step is complete by its file sizes. UserError for
/// another deck.
bool RunDirectory::is_finished(int64_t max_steps, const DeckComparison& compare) {
  std::ifstream file(path_ + "/finished.json");
  if (!file) return false;
  const auto mark = nlohmann::json::parse(file, nullptr, false);
  if (!mark.is_object() || !mark.contains("steps") || !mark["steps"].is_number_integer()) return false;
  const auto steps = mark["steps"].get<int64_t>();
  const std::vector<int64_t> saved = published_steps(checkpoints());
  const std::string deck = path_ + "/deck.ini";
  const bool can_go_on = !saved.empty() && saved.front() == steps;
  std::error_code error;
  if (can_go_on && fs::exists(deck, error)) {
    const bool longer = max_steps == 0 || max_steps > steps;
    bool another_length = false, another_deck = false;
    for (const DeckDifference& found : compare(read_deck_file(deck), deck)) {
      if (found.effect == DeckDifference::Effect::names_files) {
        renamed_files_.push_back(found.text);
      } else {
        (found.is_length() ? another_length : another_deck) = true;
      }
    }
    if (longer && another_length) return false;
    if (another_deck) refuse_another_deck(compare, "a finished run");
  } else {
    refuse_another_deck(compare, "a finished run");
  }
  if (!can_go_on) return true;
  try {
    read_manifest(checkpoints() + "/" + checkpoint_name(steps));
    return true;
  } catch (const UserError&) {  // the run resumes from an older one
    return false;
  }
}

void RunDirectory::refuse_another_deck(const DeckComparison& compare, const std::string& what) const {
  const std::string file = path_ + "/deck.ini";
  std::string changes;
  try {
    for (const DeckDifference& change : compare(read_deck_file(file), file)) changes += "\n  " + change.text;
  } catch (const UserError& error) {
    changes = std::string("\n  ") + error.what();
  }
  if (changes.empty()) return;
  throw UserError(ExitCode::cannot_create,
                  fmt::format("{}: the folder has {} of a different deck. Choose another run.name or run.output, or "
                              "give run.overwrite=true to replace it. Differences:{}",
                              path_, what, changes));
}

void RunDirectory::refuse_renamed_files() const {
  throw UserError(ExitCode::cannot_create,
                  fmt::format("{}: the folder has a finished run of a different deck. Choose another run.name or "
                              "run.output, or give run.overwrite=true to replace it. Differences:\n  {}",
                              path_, fmt::join(renamed_files_, "\n  ")));
}

bool RunDirectory::started_by_this_job(const std::string& path) {
  std::ifstream file(path + "/begun.json");
  const auto mark = nlohmann::json::parse(file, nullptr, false);
  return !own_job().empty() && mark.is_object() && mark.value("job", nlohmann::json()) == own_job();
}

/// Removes temporary files of a killed job.
void RunDirectory::remove_temporary_files() const {
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(path_, ignored)) {
    const std::string name = entry.path().filename();
    const bool ours = std::ranges::any_of(
        own_names, [&](const char* own) { return name.starts_with(own + std::string(".")) && name.ends_with(".tmp"); });
    if (ours) fs::remove(entry.path(), ignored);
  }
}

void RunDirectory::resume(const std::string& resolved_deck) const {
  remove_unfinished_saves(checkpoints());
  remove_temporary_files();
  std::error_code ignored;
  fs::remove(path_ + "/finished.json", ignored);
  write_whole_file(path_ + "/deck.ini", resolved_deck);
}

void RunDirectory::start(const std::string& resolved_deck) const {
  std::vector<const char*> names(own_names.begin(), own_names.end());
  // A run that begins anew since no checkpoint can be trusted keeps these.
  if (overwrites_) names.insert(names.end(), {replay_file_name, suspects_folder_name});
  for (const char* name : names) {
    std::error_code error;
    remove_own(path_ + "/" + name, error);
    if (error) throw UserError(ExitCode::io, fmt::format("{}/{}: cannot be removed: {}", path_, name, error.message()));
  }
  remove_temporary_files();
  write_whole_file(path_ + "/deck.ini", resolved_deck);
  nlohmann::ordered_json j = nlohmann::ordered_json::object();
  j["job"] = own_job();
  // written last, when all files of an earlier run are removed
  write_whole_file(path_ + "/begun.json", j.dump() + "\n");
}

void RunDirectory::lock() {
  const std::string file = path_ + "/lock";
  const auto open_file = [&] {
    lock_ = open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (lock_ < 0) fail_to_create(file, "cannot be opened", errno);
  };
  open_file();
  std::array<char, 512> earlier{};
  ssize_t length = pread(lock_, earlier.data(), earlier.size() - 1, 0);
  if (length > 0 && follows_lost_owner(earlier.data())) {  // on a stopped host it may hold the lock for ever
    close(lock_);
    unlink(file.c_str());
    open_file();
    length = 0;
  }
  try {
    // EWOULDBLOCK: the lock is held. Other errors: this file system has no locks, or not across nodes.
    if (flock(lock_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      refuse_owner(path_, length > 0 ? earlier.data() : "its name cannot be read");
    }
    if (length > 0) refuse_living_owner(earlier.data());
  } catch (const UserError&) {
    close(lock_);
    lock_ = -1;
    throw;
  }
  const std::string owner = owner_of_this_job();
  if (ftruncate(lock_, 0) != 0 || pwrite(lock_, owner.data(), owner.size(), 0) < 0) {
    throw UserError(ExitCode::io, fmt::format("{}: cannot be written: {}", file, strerror(errno)));
  }
}

/// Some file systems have locks that hold on one node only. A living owner on another node is recognised by its status
/// file, which changes with every beat of its job.
void RunDirectory::refuse_living_owner(const std::string& owner) const {
  // the owner is on this host
  if (owner.starts_with(owner_of_this_job().substr(0, owner_of_this_job().find(',') + 1))) return;
  const std::string file = path_ + "/status/rank-00000";
  const auto content = [&] {
    std::ifstream stream(file, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(stream), {});
  };
  std::error_code error;
  const auto changed = fs::last_write_time(file, error);
  if (error || fs::file_time_type::clock::now() - changed > longest_silence) return;
  const std::string before = content();
  const std::chrono::duration<double> two_beats(2.25 *
                                                status_beat(status_files(path_ + "/status"), longest_silence.count()));
  const auto end = std::chrono::steady_clock::now() + two_beats;
  while (std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    if (content() != before) refuse_owner(path_, owner);
  }
}

RunDirectory::~RunDirectory() {
  if (lock_ < 0) return;
  if (ftruncate(lock_, 0) != 0) errno = 0;  // a name that stays makes the next job check whether its owner lives
  close(lock_);
}

void RunDirectory::write_file(const std::string& name, const std::string& text) const {
  write_whole_file(path_ + "/" + name, text);
}

void RunDirectory::mark_finished(int64_t steps) const {
  nlohmann::ordered_json j = nlohmann::ordered_json::object();
  j["steps"] = steps;
  write_whole_file(path_ + "/finished.json", j.dump() + "\n");
}

}  // namespace llmtrain
