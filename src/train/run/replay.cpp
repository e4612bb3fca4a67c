#include "train/run/replay.hpp"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>
#include <utility>

#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/machine.hpp"
#include "core/philox.hpp"

namespace llmtrain {

namespace {

/// Name of this node as the batch system knows it.
std::string own_host() {
  const char* name = std::getenv("SLURMD_NODENAME");
  return name != nullptr && *name != '\0' ? name : host_name();
}

std::vector<uint64_t> gather_hashes(Communicator& job, uint64_t own) {
  std::vector<uint64_t> hashes;
  for (const std::string& text : job.gather_all(std::to_string(own))) hashes.push_back(std::stoull(text));
  return hashes;
}

/// The wrong ones among ranks of a job that computed the same gradients, and what they found.
std::set<int> wrong_ranks(const std::vector<std::pair<int, uint64_t>>& found, bool& decided) {
  std::set<int> wrong;
  for (const auto& [rank, right] : found) {
    const auto votes = std::ranges::count(found, right, &std::pair<int, uint64_t>::second);
    if (2 * votes <= std::ssize(found)) continue;
    for (const auto& [other, value] : found) {
      if (value != right) wrong.insert(other);
    }
    return wrong;
  }
  for (const auto& [rank, value] : found) wrong.insert(rank);
  if (wrong.size() > 1) decided = false;
  return wrong;
}

}  // namespace

ReplayFindings compare_replays(std::span<const ReplayHashes> computed, int64_t ranks_of_unit,
                               std::span<const std::string> hosts) {
  ReplayFindings findings;
  std::set<int> wrong;
  const auto ranks = std::ssize(hosts);
  for (int64_t of = 0; of < ranks; ++of) {
    std::vector<std::pair<int, uint64_t>> found;
    for (const ReplayHashes& hashes : computed) {
      const int64_t by = (of + ranks - hashes.shift * ranks_of_unit) % ranks;
      found.emplace_back(static_cast<int>(by), hashes.values[static_cast<size_t>(by)]);
    }
    wrong.merge(wrong_ranks(found, findings.decided));
  }
  findings.ranks.assign(wrong.begin(), wrong.end());
  std::map<int64_t, std::string> host_of_unit;
  for (const int rank : findings.ranks) {
    findings.hosts.push_back(hosts[static_cast<size_t>(rank)]);
    const auto known = host_of_unit.try_emplace(rank / ranks_of_unit, findings.hosts.back()).first;
    if (known->second != findings.hosts.back()) findings.decided = false;
  }
  return findings;
}

Replay::Replay(const Mesh& mesh, int64_t every, int64_t total_steps, uint64_t seed)
    : mesh_(mesh),
      every_(every),
      total_steps_(total_steps),
      ranks_of_unit_(std::max(mesh.shape().ranks_per_micro_batch(), mesh.shape().ranks_of_blocks())),
      units_(mesh.job().size() / ranks_of_unit_),
      seed_(seed),
      hosts_(mesh.job().gather_all(own_host())),
      neighbours_(static_cast<size_t>(units_)) {
  std::map<std::string, int64_t> numbers;
  std::vector<int64_t> host_of_unit;
  for (int64_t unit = 0; unit < units_; ++unit) {
    const std::string& host = hosts_[static_cast<size_t>(unit * ranks_of_unit_)];
    host_of_unit.push_back(numbers.try_emplace(host, std::ssize(numbers)).first->second);
  }
  for (size_t shift = 0; shift < neighbours_.size(); ++shift) {
    for (size_t unit = 0; unit < neighbours_.size(); ++unit) {
      if (host_of_unit[unit] == host_of_unit[(unit + shift) % neighbours_.size()]) ++neighbours_[shift];
    }
  }
}

bool Replay::is_due(int64_t completed) const {
  if (every_ == 0) return false;
  return (completed > 0 && completed % every_ == 0) || completed + 1 == total_steps_;
}

uint64_t Replay::draw(int64_t completed, uint64_t what) const {
  const Philox4 bits = philox4x32(seed_, static_cast<uint64_t>(completed), hash_of_name("replay") + what);
  return bits.v[0];
}

int64_t Replay::round(int64_t completed, const GroupSchedule& schedule) const {
  int64_t last = schedule.ranks - 1, rounds = 1;
  while (schedule.group_of(0, last) < 0) --last;
  while (rounds < schedule.rounds() && schedule.group_of(rounds, last) >= 0) ++rounds;
  return static_cast<int64_t>(draw(completed, 0) % static_cast<uint64_t>(rounds));
}

/// Draws a shift, if possible one with which nobody replays on its own host; `other`: a shift that others have, or 0.
int64_t Replay::choose_shift(int64_t completed, int64_t other) const {
  const auto cost = [&](int64_t shift) {
    const int64_t apart = (shift - other + units_) % units_;
    return neighbours_[static_cast<size_t>(shift)] + (other == 0 ? 0 : neighbours_[static_cast<size_t>(apart)]);
  };
  std::vector<int64_t> best;
  for (int64_t shift = 1; shift < units_; ++shift) {
    if (shift == other) continue;
    if (!best.empty() && cost(shift) < cost(best.front())) best.clear();
    if (best.empty() || cost(shift) == cost(best.front())) best.push_back(shift);
  }
  if (best.empty()) return 0;
  return best[draw(completed, other == 0 ? 1 : 2) % best.size()];
}

ReplayHashes Replay::replay(int64_t shift, const Compute& compute) const {
  const Communicator& same_units = mesh_.parameters();
  const int64_t places = ranks_of_unit_ / mesh_.shape().ranks_of_blocks();
  return {shift, gather_hashes(mesh_.job(), compute((same_units.rank() + shift * places) % same_units.size()))};
}

ReplayFindings Replay::check(int64_t completed, uint64_t own, const Compute& compute) {
  const double begin = now();
  const int64_t shift = choose_shift(completed, 0);
  // Ranks may wait for each other's exchanges of gradients until the replay has begun everywhere.
  std::vector<ReplayHashes> computed = {replay(shift, compute)};
  computed.insert(computed.begin(), {0, gather_hashes(mesh_.job(), own)});
  ReplayFindings findings = compare_replays(computed, ranks_of_unit_, hosts_);
  if (!findings.ranks.empty() && units_ > 2) {
    computed.push_back(replay(choose_shift(completed, shift), compute));
    findings = compare_replays(computed, ranks_of_unit_, hosts_);
  }
  seconds_ += now() - begin;
  if (findings.ranks.empty()) ++count_;
  return findings;
}

}  // namespace llmtrain
