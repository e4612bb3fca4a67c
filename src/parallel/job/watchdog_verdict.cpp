#include "parallel/job/watchdog_verdict.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace llmtrain {
namespace {

constexpr double slack = 10;      // times the longest piece of work
constexpr size_t max_lines = 64;  // of ranks that are not at fault

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
      return fmt::format("{} {} gone: the process ended without a word", who, verb);
    case Verdict::Cause::silent:
      return fmt::format("{} {} lost: no sign of life for {:.0f} s", who, verb, verdict.seconds);
    case Verdict::Cause::stuck:
      return fmt::format("{} {} stuck: no progress for {:.0f} s", who, verb, verdict.seconds);
    case Verdict::Cause::no_file_system:
      return fmt::format("the run's file system has not answered {} for {:.0f} s", who, verdict.seconds);
    case Verdict::Cause::nobody_moves:
      break;
  }
  return fmt::format("all ranks wait for each other for {:.0f} s, {} behind the others", verdict.seconds, who);
}

std::string line_of(size_t rank, const ObservedRank& seen, bool at_fault) {
  std::string text = fmt::format("  rank {}", rank);
  if (!seen.status) {
    text += ": nothing is known of it";
  } else {
    text += fmt::format(" on {}, process {}: {}", seen.status->process.host, seen.status->process.pid,
                        describe(*seen.status));
    text += fmt::format("; sign of life {:.1f} s ago", seen.silent);
  }
  if (seen.process == ProcessState::gone) text += "; the process is gone";
  if (seen.process == ProcessState::stopped) text += "; the process is stopped (SIGSTOP, or a debugger)";
  return text + (at_fault ? "   <==\n" : "\n");
}

/// All wait: those that entered the oldest collective, when the others are further.
std::vector<int> behind(const std::vector<ObservedRank>& ranks) {
  int64_t least = INT64_MAX;
  for (const ObservedRank& rank : ranks) least = std::min(least, rank.status->sequence);
  std::vector<int> found;
  for (size_t r = 0; r < ranks.size(); ++r) {
    if (ranks[r].status->sequence == least) found.push_back(static_cast<int>(r));
  }
  return found;
}

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

std::string report(const Verdict& verdict, const std::vector<ObservedRank>& ranks) {
  std::string text = fmt::format("llmtrain: {}. Where the ranks are:\n", what_happened(verdict));
  size_t lines = 0, left_out = 0;
  for (size_t r = 0; r < ranks.size(); ++r) {
    const bool at_fault = std::ranges::find(verdict.ranks, static_cast<int>(r)) != verdict.ranks.end();
    if (!at_fault && ++lines > max_lines) {
      ++left_out;
      continue;
    }
    text += line_of(r, ranks[r], at_fault);
  }
  if (left_out > 0) text += fmt::format("  and {} more, of which nothing is wrong to see\n", left_out);
  return text + "llmtrain: the job ends (exit code 76); the same command goes on from the newest checkpoint\n";
}

}  // namespace llmtrain
