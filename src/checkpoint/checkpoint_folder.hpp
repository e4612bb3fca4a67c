#pragma once
// The folder <run>/checkpoints and the names in it. A checkpoint is visible from the rename of its attempt on; a
// removed one is invisible from the rename to its tombstone on. One rank at a time calls these.

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

/// Steps of the published checkpoints, newest first; none when the folder is not there.
std::vector<int64_t> published_steps(const std::string& folder);

/// A checkpoint that was about to be replaced when its job was killed, and whose name nobody took, has it again. Before
/// anything looks for checkpoints; only the owner of the run may call it.
void restore_replaced(const std::string& folder);

/// Removes what killed jobs left: attempts, tombstones and half-made links. Only the owner of the run may call it.
void sweep_leftovers(const std::string& folder);

/// Makes folder and attempt. Gives the attempt's path.
std::string create_attempt(const std::string& folder, int64_t step, const SaveHook& hook);
/// The attempt becomes the checkpoint of its step, in one rename; an older one of the same step makes room for it: in
/// the same operation, or, where the file system cannot, by a rename that restore_replaced undoes.
void publish_attempt(const std::string& folder, const std::string& attempt, int64_t step, const SaveHook& hook);
/// Tombstone, then removal.
void remove_checkpoint(const std::string& folder, int64_t step, const SaveHook& hook);
/// Points the symbolic link to a checkpoint, for people: failures are of no consequence.
void link_checkpoint(const std::string& folder, const std::string& link, int64_t step, const SaveHook& hook);

/// Bytes a file of this user could still take in the folder.
int64_t free_bytes(const std::string& folder);

}  // namespace llmtrain
