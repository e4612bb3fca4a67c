#pragma once
// Resuming. A checkpoint counts only after all bytes of all its files were found to be what its manifest says; files
// are opened without following links, and never by HDF5.

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/manifest.hpp"
#include "checkpoint/state.hpp"
#include "parallel/communicator.hpp"

namespace llmtrain {

/// Collective: reads everything, shared out to ranks and threads. UserError(bad_content or missing_input) on all ranks,
/// which names each file that is wrong and, in shards, the tensor, with the expected and the actual hash.
Manifest verify_checkpoint(const std::string& path, Communicator& communicator);

/// The manifest alone, and that the files have their sizes. Not collective.
Manifest read_manifest(const std::string& path);

struct RefusedCheckpoint {
  int64_t step;
  std::string path;
  std::string reason;
};

struct FoundCheckpoint {
  std::string path;
  Manifest manifest;
  std::vector<RefusedCheckpoint> refused;  ///< newer ones
};

/// Collective: the newest checkpoint that verifies, the same on all ranks. None only where there is none at all: if
/// all are damaged, UserError(bad_content), since a run never starts again from step 0 by itself.
std::optional<FoundCheckpoint> find_checkpoint(const std::string& folder, Communicator& communicator);

/// Collective: the target's ranges out of a verified checkpoint of any number of shards, by way of `buffer`.
/// UserError(bad_content) when the tensors are not the target's.
void load_checkpoint(const std::string& path, const Manifest& manifest, StateTarget& target, std::span<float> buffer,
                     Communicator& communicator);

}  // namespace llmtrain
