#pragma once
// The folder <run>/checkpoints and its names. A checkpoint becomes visible when its attempt is renamed, and invisible
// when it is renamed to its tombstone. One rank at a time calls these functions.

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/shard_file.hpp"

namespace llmtrain {

/// "step-00001000"
std::string checkpoint_name(int64_t step);
std::optional<int64_t> step_of(std::string_view name);

/// Returns the steps of the published checkpoints, newest first; none if the folder does not exist.
std::vector<int64_t> published_steps(const std::string& folder);

/// Restores the name of a checkpoint whose replacement was interrupted when its job was killed. It is called before
/// anything looks for checkpoints, and only by the owner of the run.
void restore_replaced(const std::string& folder);

/// Removes attempts, tombstones and half-made links of killed jobs. Only the owner of the run may call it.
void remove_unfinished_saves(const std::string& folder);

/// Makes the folder and an attempt. Returns the attempt's path.
std::string create_attempt(const std::string& folder, int64_t step, const SaveHook& hook);
/// Renames the attempt to the checkpoint of its step. An older checkpoint of the same step is replaced in the same
/// operation or, if the file system cannot do that, by a rename that restore_replaced undoes.
void publish_attempt(const std::string& folder, const std::string& attempt, int64_t step, const SaveHook& hook);
/// Renames to a tombstone, then removes.
void remove_checkpoint(const std::string& folder, int64_t step, const SaveHook& hook);
/// Points the symbolic link to a checkpoint, for users; failures are ignored.
void link_checkpoint(const std::string& folder, const std::string& link, int64_t step, const SaveHook& hook);

/// Moves checkpoints of later steps than `step` into the folder `aside`, the newest first, and points the links at
/// `step` and at the best one; -1: there is none. One that is there already stays, beside the new one. UserError.
void set_aside_after(const std::string& folder, int64_t step, int64_t best, const std::string& aside);

/// Returns the bytes that a file of this user can still take in the folder.
int64_t free_bytes(const std::string& folder);

/// Rules for the removal of old checkpoints.
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
