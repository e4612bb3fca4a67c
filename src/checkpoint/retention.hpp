#pragma once
// Rules for the removal of old checkpoints, as pure functions, and the removal itself.

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/checkpoint_folder.hpp"

namespace llmtrain {

struct RetentionRules {
  int64_t keep = 3;            ///< number of newest checkpoints to keep, at least two
  std::set<int64_t> pinned;    ///< the best one, and the one that the run resumed from
  std::set<int64_t> verified;  ///< read back or verified by this job
  std::set<int64_t> refused;   ///< found damaged: not counted among the newest
};

/// Returns the checkpoints to remove, oldest first: older than the newest `keep` intact ones, not pinned, and only if
/// two newer ones are known to be intact. (A job knows this of the checkpoint that it resumes from: its first save
/// removes what a kill between saving and removing left.)
std::vector<int64_t> removable(const std::vector<int64_t>& published, const RetentionRules& rules);

/// Removes them. Rank 0 only, while no save is in flight. Returns the removed steps.
std::vector<int64_t> apply_retention(const std::string& folder, const RetentionRules& rules,
                                     const SaveHook& hook = nullptr);

}  // namespace llmtrain
