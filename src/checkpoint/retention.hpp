#pragma once
// Which checkpoints stay. Pure rules, and the removal by them.

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/checkpoint_folder.hpp"

namespace llmtrain {

struct RetentionRules {
  int64_t keep = 3;            ///< the newest so many, never fewer than two
  std::set<int64_t> pinned;    ///< the best, and the one that the run resumed from
  std::set<int64_t> verified;  ///< read back or verified by this job
  std::set<int64_t> refused;   ///< found damaged: they do not count among the newest
};

/// What may go, oldest first: older than the newest `keep` sound ones, not pinned, and only where two newer ones are
/// known to be whole. (A job knows that of the one it goes on from: what a kill between saving and removing left goes
/// with its first save.)
std::vector<int64_t> removable(const std::vector<int64_t>& published, const RetentionRules& rules);

/// Removes them. Rank 0 only, while no save is in flight. Gives the steps that went.
std::vector<int64_t> apply_retention(const std::string& folder, const RetentionRules& rules,
                                     const SaveHook& hook = nullptr);

}  // namespace llmtrain
