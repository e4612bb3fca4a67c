#include "parallel/job/watchdog.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <ctime>
#include <filesystem>
#include <mutex>
#include <thread>

#include "core/error.hpp"
#include "core/files/opened_files.hpp"
#include "parallel/job/failure.hpp"
#include "parallel/job/status_board.hpp"

namespace llmtrain {

namespace {

constexpr double slack = 10;      // multiple of the longest work item
constexpr size_t max_lines = 64;  // maximum of printed ranks that are not at fault

bool reads_files(Section section) {
  switch (section) {
    case Section::step:
    case Section::evaluation:
    case Section::sampling:
      return false;
    default:
      return true;
  }
}

std::string what_happened(const Verdict& verdict) {
  const std::string who =
      fmt::format("{} {}", verdict.ranks.size() == 1 ? "rank" : "ranks", fmt::join(verdict.ranks, ", "));
  const std::string verb = verdict.ranks.size() == 1 ? "is" : "are";
  switch (verdict.cause) {
    case Verdict::Cause::gone:
      return fmt::format("{} {} gone: the process ended without a message", who, verb);
    case Verdict::Cause::silent:
      return fmt::format("{} {} lost: no heartbeat for {:.0f} s", who, verb, verdict.seconds);
    case Verdict::Cause::stuck:
      return fmt::format("{} {} stuck: no progress for {:.0f} s", who, verb, verdict.seconds);
    case Verdict::Cause::no_file_system:
      return fmt::format("the run's file system has not answered {} for {:.0f} s", who, verdict.seconds);
    case Verdict::Cause::nobody_moves:
      break;
  }
  return fmt::format("all ranks have waited for each other for {:.0f} s, {} behind the others", verdict.seconds, who);
}

std::string line_of(size_t rank, const ObservedRank& seen, bool at_fault) {
  std::string text = fmt::format("  rank {}", rank);
  if (!seen.status) {
    text += ": its state is unknown";
  } else {
    text += fmt::format(" on {}, process {}: {}", seen.status->process.host, seen.status->process.pid,
                        describe(*seen.status));
    text += fmt::format("; last heartbeat {:.1f} s ago", seen.silent);
  }
  if (seen.process == ProcessState::gone) text += "; the process is gone";
  if (seen.process == ProcessState::stopped) text += "; the process is stopped (SIGSTOP, or a debugger)";
  return text + (at_fault ? "   <==\n" : "\n");
}

/// If all wait, the stuck ranks are those in the oldest collective, provided that others have passed it.
std::vector<int> behind(const std::vector<ObservedRank>& ranks) {
  int64_t least = INT64_MAX;
  for (const ObservedRank& rank : ranks) least = std::min(least, rank.status->sequence);
  std::vector<int> found;
  for (size_t r = 0; r < ranks.size(); ++r) {
    if (ranks[r].status->sequence == least) found.push_back(static_cast<int>(r));
  }
  return found;
}

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr double ending_seconds = 5;    // time between a request to end and the kill; launchers wait 1 to 30
constexpr double patience = 3;          // grace for the file system once the verdict is reached
constexpr double others_patience = 10;  // grace for the rank that reports
constexpr double quick_period = 0.02;   // period while a decision is urgent
// a longer pause means that the watchdog itself was suspended, and does not count
constexpr double longest_pause = 1;

/// File of a node, by its first rank.
std::string status_path(const std::string& folder, int64_t rank) { return fmt::format("{}/rank-{:05}", folder, rank); }

/// The file is opened for each read: on NFS, close-to-open consistency shows the bytes of other nodes.
bool write_statuses(const std::string& path, const std::string& text, int flags) {
  ++opened_files();
  const int file = ::open(path.c_str(), O_WRONLY | O_CLOEXEC | flags, 0666);
  if (file < 0) return false;
  const bool written = ::pwrite(file, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()) &&
                       ::ftruncate(file, static_cast<off_t>(text.size())) == 0;
  return ::close(file) == 0 && written;
}

std::string read_statuses(const std::string& path) {
  ++opened_files();
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return {};
  struct stat status {};
  std::string text(::fstat(file, &status) == 0 ? static_cast<size_t>(status.st_size) : 0, '\0');
  const ssize_t length = ::pread(file, text.data(), text.size(), 0);
  ::close(file);
  text.resize(static_cast<size_t>(std::max<ssize_t>(length, 0)));
  return text;
}

/// Rank 0 empties the folder of an earlier job's files; it keeps all other files.
void prepare_folder(const std::string& folder) {
  std::error_code ignored;
  fs::create_directories(folder, ignored);
  std::error_code error;  // no range-based loop, which throws when reading the folder fails
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename();
    if (name.starts_with("rank-") || name.starts_with("end-")) fs::remove(entry->path(), ignored);
  }
}

void block_signals() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
}

/// Time without progress of one lane, and the longest time of a work item by section.
class LaneWatch {
 public:
  explicit LaneWatch(Lane lane) : lane_(activity().lane(lane)), ticks_(lane_.ticks.load()) {}

  void observe(double seconds, bool waits) {
    const uint64_t ticks = lane_.ticks.load();
    if (ticks == ticks_) {
      idle_ += seconds;
      worked_ = !waits;
      section_ = lane_.section.load();
      return;
    }
    if (worked_) longest_[static_cast<size_t>(section_)] = std::max(longest_[static_cast<size_t>(section_)], idle_);
    ticks_ = ticks;
    idle_ = 0;
    worked_ = false;
  }
  double idle() const { return idle_; }
  bool over_deadline(const WatchdogLimits& limits) const {
    const Section section = lane_.section.load();
    return idle_ > deadline_of(section, lane_.file_calls.load() > 0, longest_[static_cast<size_t>(section)], limits);
  }

 private:
  LaneActivity& lane_;
  uint64_t ticks_;
  double idle_ = 0;
  bool worked_ = false;
  Section section_ = Section::starting;
  std::array<double, enum_names<Section>.size()> longest_{};
};

}  // namespace

double deadline_of(Section section, bool in_file_call, double longest, const WatchdogLimits& limits) {
  const double given =
      in_file_call || reads_files(section) ? std::max(limits.io_stuck_after, limits.stuck_after) : limits.stuck_after;
  return std::max(given, slack * longest);
}

std::optional<Verdict> find_verdict(const std::vector<ObservedRank>& ranks, int own, const WatchdogLimits& limits) {
  Verdict gone{Verdict::Cause::gone, {}, 0}, silent{Verdict::Cause::silent, {}, 0};
  bool all_wait = ranks.size() > 1;
  double shortest_wait = 1e300;
  for (size_t r = 0; r < ranks.size(); ++r) {
    const ObservedRank& seen = ranks[r];
    const bool waits = seen.status && seen.status->in_collective;
    all_wait = all_wait && waits;
    if (waits) shortest_wait = std::min(shortest_wait, std::min(seen.status->idle, seen.status->since));
    if (static_cast<int>(r) == own) continue;
    if (seen.process == ProcessState::gone) {
      gone.ranks.push_back(static_cast<int>(r));
    } else if (seen.silent >= limits.lost_after) {
      silent.ranks.push_back(static_cast<int>(r));
      silent.seconds = std::max(silent.seconds, seen.silent);
    }
  }
  if (!gone.ranks.empty()) return gone;
  if (!silent.ranks.empty()) return silent;
  if (all_wait && shortest_wait >= std::max(limits.io_stuck_after, limits.stuck_after)) {
    return Verdict{Verdict::Cause::nobody_moves, behind(ranks), shortest_wait};
  }
  return std::nullopt;
}

std::string hosts_at_fault(const Verdict& verdict, const std::vector<ObservedRank>& ranks) {
  if (verdict.cause == Verdict::Cause::gone || verdict.cause == Verdict::Cause::no_file_system) return {};
  std::string hosts;
  for (const int r : verdict.ranks) {
    const std::optional<RankStatus>& status = ranks[static_cast<size_t>(r)].status;
    if (status && hosts.find(status->process.host + "\n") == std::string::npos) hosts += status->process.host + "\n";
  }
  return hosts;
}

std::string report(const Verdict& verdict, const std::vector<ObservedRank>& ranks) {
  std::string text = fmt::format("llmtrain: {}. State of the ranks:\n", what_happened(verdict));
  size_t lines = 0, left_out = 0;
  for (size_t r = 0; r < ranks.size(); ++r) {
    const bool at_fault = std::ranges::find(verdict.ranks, static_cast<int>(r)) != verdict.ranks.end();
    if (!at_fault && ++lines > max_lines) {
      ++left_out;
      continue;
    }
    text += line_of(r, ranks[r], at_fault);
  }
  if (left_out > 0) text += fmt::format("  and {} more, without visible problems\n", left_out);
  return text + "llmtrain: the job ends (exit code 76); the same command resumes from the newest checkpoint\n";
}

struct Watchdog::State {
  State(const WatchOptions& options_in, int64_t job_in, Communicator& communicator)
      : options(options_in),
        rank(communicator.rank()),
        size(communicator.size()),
        process(own_identity()),
        job(job_in),
        board(job_in, communicator),
        seen(static_cast<size_t>(communicator.size())) {
    const WatchdogLimits& l = options.limits;
    beat = status_beat(std::ssize(board.first_ranks()), l.lost_after);
    period = std::clamp(std::min({l.lost_after, l.stuck_after, l.io_stuck_after}) / 10, 0.02, 0.1);
    // In a large job only a few ranks watch the others, so that the file system need not serve all of them at once.
    looks = size <= 16 || rank % (size / 8) == 0;
  }

  void watch();
  void report_status();
  RankStatus own_status();
  void publish();
  void check_peers(double seconds);
  std::optional<Verdict> conclude(const LaneWatch& main, const LaneWatch& writer);
  std::vector<ObservedRank> ranks_now();
  [[noreturn]] void end_with(const Verdict& verdict);
  template <class Condition>
  bool wait(double seconds, const Condition& condition) {
    std::unique_lock lock(mutex);
    return wake.wait_for(lock, Seconds(seconds), condition);
  }

  const WatchOptions options;
  const int rank, size;
  const ProcessIdentity process;
  bool with_files = false;
  bool looks;
  double beat, period;  // seconds between two writes of the file, and between two checks of memory
  const int64_t job;
  StatusBoard board;  // used by the file thread, once it runs

  std::mutex mutex;  // guards the fields below; never held in a call of the file system
  std::condition_variable wake;
  bool stop = false;
  bool look = false, hurry = false, end_wanted = false;
  double main_idle = 0, writer_idle = 0;
  double files_idle = 0;  // seconds since the file thread last returned
  enum class Claim : uint8_t { open, ours, others } claim = Claim::open;
  std::vector<ObservedRank> seen;
  std::string hosts;  // at fault
  int threads = 0;    // number of running threads

  std::vector<ObservedRank> table;  // used by the file thread only
  int64_t beats = 0;                // used by the file thread only
};

RankStatus Watchdog::State::own_status() {
  RankStatus status = status_of(activity());
  status.job = job;
  status.rank = rank;
  status.process = process;
  const std::lock_guard lock(mutex);
  status.idle = main_idle;
  status.writer_idle = writer_idle;
  return status;
}

/// Another rank of the node takes over from one that has been silent for a few beats.
void Watchdog::State::publish() {
  RankStatus own = own_status();
  own.beat = ++beats;
  own.written = std::time(nullptr);
  board.put(to_text(own));
  constexpr double silent_beats = 4;
  if (board.writes(silent_beats * beat)) {
    write_statuses(status_path(options.folder, board.first_rank()), board.statuses(), 0);
  }
  table[static_cast<size_t>(rank)].status = std::move(own);
}

void Watchdog::State::check_peers(double seconds) {
  for (ObservedRank& other : table) other.silent += seconds;
  for (const int first : board.first_ranks()) {
    const bool own = first == board.first_rank();
    const std::string text = own ? board.statuses() : read_statuses(status_path(options.folder, first));
    for (RankStatus& now : parse_statuses(text)) {
      if (now.job != job || now.rank < 0 || now.rank >= size || now.rank == rank) continue;
      ObservedRank& other = table[static_cast<size_t>(now.rank)];
      if (other.status && now.beat == other.status->beat) continue;
      other.status = std::move(now);
      other.silent = 0;
    }
  }
  for (int r = 0; r < size; ++r) {
    ObservedRank& other = table[static_cast<size_t>(r)];
    if (r != rank && other.status) other.process = look_up(other.status->process, process);
  }
}

/// Body of the file thread.
void Watchdog::State::report_status() {
  Clock::time_point last = Clock::now();
  table.resize(static_cast<size_t>(size));
  while (true) {
    publish();
    bool looking = false, ending = false;
    std::string lost;
    {
      const std::lock_guard lock(mutex);
      looking = look;
      ending = end_wanted;
      lost = hosts;
    }
    const Clock::time_point now = Clock::now();
    if (looking) {
      check_peers(std::min(Seconds(now - last).count(), std::max(2 * beat, longest_pause)));
    } else {
      for (ObservedRank& other : table) other.silent = 0;
    }
    last = now;
    table[static_cast<size_t>(rank)].silent = 0;
    const bool ours = ending && claim_end(static_cast<int>(ExitCode::peer_failed));
    if (ours && !options.lost_nodes.empty()) write_statuses(options.lost_nodes, lost, O_CREAT);
    std::unique_lock lock(mutex);
    seen = table;
    files_idle = 0;
    if (ending && claim == Claim::open) claim = ours ? Claim::ours : Claim::others;
    wake.notify_all();
    wake.wait_for(lock, Seconds(hurry && looks ? quick_period : beat),
                  [&] { return stop || (look && !looking) || (end_wanted && claim == Claim::open); });
    if (stop) return;
  }
}

std::optional<Verdict> Watchdog::State::conclude(const LaneWatch& main, const LaneWatch& writer) {
  const Activity& now = activity();
  const bool writes = now.lane(Lane::writer).active.load();
  const bool waits = now.collective.inside.load() || (now.waits_for_writer.load() && writes);
  const WatchdogLimits& limits = options.limits;
  if (!waits && main.over_deadline(limits)) return Verdict{Verdict::Cause::stuck, {rank}, main.idle()};
  // If the writer copies data that transfers produce, it waits for the same peers as the training thread.
  const bool behind = now.collective.inside.load() && now.lane(Lane::writer).waits_for_device.load();
  if (writes && !behind && writer.over_deadline(limits)) return Verdict{Verdict::Cause::stuck, {rank}, writer.idle()};
  if (!with_files) return std::nullopt;
  const std::lock_guard lock(mutex);
  const double io = std::max(limits.io_stuck_after, limits.stuck_after);
  if (files_idle > io && main.idle() > io) return Verdict{Verdict::Cause::no_file_system, {rank}, files_idle};
  if (!look) return std::nullopt;
  return find_verdict(seen, rank, limits);
}

/// Body of the thread that watches memory.
void Watchdog::State::watch() {
  LaneWatch main(Lane::main), writer(Lane::writer);
  double ending_for = 0;
  Clock::time_point last = Clock::now();
  while (!wait(hurry ? quick_period : period, [this] { return stop; })) {
    const Clock::time_point now = Clock::now();
    const double seconds = std::min(Seconds(now - last).count(), longest_pause);
    last = now;
    const Activity& activity_now = activity();
    main.observe(seconds, activity_now.collective.inside.load() || activity_now.waits_for_writer.load());
    writer.observe(seconds, false);
    if (options.ending && options.ending()) ending_for += seconds;
    {
      const std::lock_guard lock(mutex);
      main_idle = main.idle();
      writer_idle = writer.idle();
      files_idle += seconds;
      hurry = ending_for > 0 && ending_for < ending_seconds;
      look = looks && (main.idle() > 2 * beat || hurry);
      if (look) wake.notify_all();
    }
    if (const auto verdict = conclude(main, writer)) end_with(*verdict);
    // Another rank ends the job, and this rank was asked to end: it does so before it is killed.
    if (hurry && with_files) {
      if (const auto code = claimed_code()) _exit(*code);
    }
  }
}

std::vector<ObservedRank> Watchdog::State::ranks_now() {
  std::unique_lock lock(mutex);
  std::vector<ObservedRank> ranks = seen;
  lock.unlock();
  ranks[static_cast<size_t>(rank)].status = own_status();
  ranks[static_cast<size_t>(rank)].process = ProcessState::running;
  return ranks;
}

void Watchdog::State::end_with(const Verdict& verdict) {
  bool silent = false;
  if (with_files) {
    std::string lost = hosts_at_fault(verdict, ranks_now());
    std::unique_lock lock(mutex);
    hosts = std::move(lost);
    look = end_wanted = true;
    wake.notify_all();
    wake.wait_for(lock, Seconds(patience), [this] { return claim != Claim::open; });
    silent = claim == Claim::others;
  }
  if (silent) {
    std::this_thread::sleep_for(Seconds(others_patience));
    _exit(static_cast<int>(ExitCode::peer_failed));
  }
  abort_with_report(static_cast<int>(ExitCode::peer_failed), report(verdict, ranks_now()));
}

namespace {

int64_t number_of_job(Communicator& communicator) {
  int64_t number = Clock::now().time_since_epoch().count();
  communicator.broadcast(&number, sizeof(number));
  return number;
}

}  // namespace

Watchdog::Watchdog(const WatchOptions& options, Communicator& communicator)
    : state_(std::make_shared<State>(options, number_of_job(communicator), communicator)) {
  State& s = *state_;
  if (communicator.rank() == 0) prepare_folder(options.folder);
  s.board.put(to_text(s.own_status()));
  communicator.barrier();
  const bool first = s.board.first_rank() == s.rank;
  const bool written = !first || write_statuses(status_path(options.folder, s.rank), s.board.statuses(), O_CREAT);
  std::array<int64_t, 1> blind = {written ? 0 : 1};
  communicator.sum(blind);
  s.with_files = blind[0] == 0;
  if (s.with_files) {
    // The name has the job's number: ranks of an earlier job that are cut off may still end, without a say in this one.
    set_claim_file(fmt::format("{}/end-{}", options.folder, s.job));
  } else {
    note_ = fmt::format("{}: {} ranks cannot write to this folder, so that lost ranks are not detected", options.folder,
                        blind[0]);
  }
  const auto start = [&](void (State::*work)()) {
    ++s.threads;
    std::thread([state = state_, work] {
      block_signals();
      (*state.*work)();
      const std::lock_guard lock(state->mutex);
      --state->threads;
      state->wake.notify_all();
    }).detach();
  };
  start(&State::watch);
  if (s.with_files) start(&State::report_status);
}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stop = true;
  }
  state_->wake.notify_all();
  state_->wait(patience, [this] { return state_->threads == 0; });
  set_claim_file("");
  if (state_->rank != 0 || !state_->with_files) return;
  prepare_folder(state_->options.folder);
  std::error_code ignored;
  fs::remove(state_->options.folder, ignored);
}

}  // namespace llmtrain
