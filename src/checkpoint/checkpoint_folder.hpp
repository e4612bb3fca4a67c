#pragma once
// The folder <run>/checkpoints and its names. A checkpoint becomes visible when its attempt is renamed, and invisible
// when it is renamed to its tombstone. One rank at a time calls these functions.

#include <cstdint>
#include <optional>
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

/// Returns the bytes that a file of this user can still take in the folder.
int64_t free_bytes(const std::string& folder);

}  // namespace llmtrain
