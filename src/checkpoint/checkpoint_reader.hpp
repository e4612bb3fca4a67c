#pragma once
// Resuming. A checkpoint is used only after all bytes of all its files were compared with its manifest; files are
// opened without following links, and never by HDF5.

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/manifest.hpp"
#include "checkpoint/state.hpp"
#include "parallel/communicator.hpp"

namespace llmtrain {

/// Collective: reads everything, shared among ranks and threads. Throws UserError(bad_content or missing_input) on all
/// ranks, which names each damaged file and, in shards, the tensor, with the expected and the actual hash.
Manifest verify_checkpoint(const std::string& path, Communicator& communicator);

/// Reads the manifest alone, and checks the sizes of the files. Not collective.
Manifest read_manifest(const std::string& path);

struct RefusedCheckpoint {
  int64_t step;
  std::string path;
  std::string reason;
};

struct FoundCheckpoint {
  std::string path;
  Manifest manifest;
  std::vector<RefusedCheckpoint> refused;  ///< newer checkpoints that are damaged
};

/// Collective: returns the newest intact checkpoint, the same on all ranks. Returns none only if there is no
/// checkpoint: if all are damaged, it throws UserError(bad_content), since a run never restarts from step 0 by itself.
std::optional<FoundCheckpoint> find_checkpoint(const std::string& folder, Communicator& communicator);

/// Collective: reads the target's ranges from a verified checkpoint with any number of shards, through `buffer`. Throws
/// UserError(bad_content) if the tensors are not the target's.
void load_checkpoint(const std::string& path, const Manifest& manifest, StateTarget& target, std::span<float> buffer,
                     Communicator& communicator);

}  // namespace llmtrain
