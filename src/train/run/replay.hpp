#pragma once
// Replay finds ranks that compute wrongly: in some steps ranks once more compute the gradients of others, which must
// have the same bits. Ranks that share the rows, matrices or experts of their micro-batches are replayed by as many
// others at the same places: a unit of ranks. The draws follow from the seed.

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "parallel/mesh.hpp"
#include "params/reduction/reduction_groups.hpp"

namespace llmtrain {

/// Result of a replay.
struct ReplayFindings {
  std::vector<int> ranks;          ///< of the job, with wrong gradients; none: all agree
  std::vector<std::string> hosts;  ///< of these ranks, in their order
  bool decided = true;             ///< false: some of the ranks are right, and it is unknown which
};

/// Hashes by rank of the job, of the gradients that the ranks `shift` units further on have by the schedule.
struct ReplayHashes {
  int64_t shift;
  std::vector<uint64_t> values;
};

/// Decides by majority which ranks are wrong. `computed`: once by all units themselves, once by others, and once by
/// further ones where that was needed. A job of one unit has only itself to compare with, and is wrong if it differs.
/// Wrong ranks of one unit on several hosts may have misled each other: the result is undecided.
ReplayFindings compare_replays(std::span<const ReplayHashes> computed, int64_t ranks_of_unit,
                               std::span<const std::string> hosts);

class Replay {
 public:
  /// Replays every so many steps, before the update, and in the last of `total_steps`. Collective.
  Replay(const Mesh& mesh, int64_t every, int64_t total_steps, uint64_t seed);

  /// True in the step after `completed` ones. Steps that other steps follow are those after multiples of `every`, so
  /// that a replay that agrees vouches for the parameters of a checkpoint of that step.
  bool is_due(int64_t completed) const;
  /// Draws the round of a step, among those in which as many ranks as possible have a group.
  int64_t round(int64_t completed, const GroupSchedule& schedule) const;
  /// Computes the gradients that this rank of those with the same units has in the round, and returns their hash.
  using Compute = std::function<uint64_t(int64_t rank)>;
  /// `own`: the hash of this rank's own gradients. Collective, the same on all ranks.
  ReplayFindings check(int64_t completed, uint64_t own, const Compute& compute);

  int64_t count() const { return count_; }     ///< replays of this job that agreed
  double seconds() const { return seconds_; }  ///< of all of them

 private:
  uint64_t draw(int64_t completed, uint64_t what) const;
  int64_t choose_shift(int64_t completed, int64_t other) const;
  ReplayHashes replay(int64_t shift, const Compute& compute) const;

  const Mesh& mesh_;
  int64_t every_, total_steps_, ranks_of_unit_, units_;
  uint64_t seed_;
  std::vector<std::string> hosts_;   ///< by rank of the job
  std::vector<int64_t> neighbours_;  ///< by shift: units whose first rank lies on the host of that other one's
  int64_t count_ = 0;
  double seconds_ = 0;
};

}  // namespace llmtrain
