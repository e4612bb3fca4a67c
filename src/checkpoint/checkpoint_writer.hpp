#pragma once
// Saving. Everything is written to an attempt's folder and becomes visible by one rename, after it was synced, read
// back and compared. All ranks agree after each phase; a failure on any ends the save on all of them with one
// UserError, removes the attempt and leaves the older checkpoints alone.

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/checkpoint_folder.hpp"
#include "checkpoint/manifest.hpp"
#include "checkpoint/shard_file.hpp"
#include "checkpoint/state.hpp"
#include "parallel/communicator.hpp"

namespace llmtrain {

/// What rank 0 says about the run; the manifest gets schema and files from the save itself.
struct SaveRequest {
  int64_t step = 0;
  std::string program;
  std::string deck;
  int64_t ledger_bytes = 0;
  Digest ledger_hash;
  RunState run;
  bool best = false;      ///< the link `best` comes to point here
  bool from_disk = true;  ///< what was written is read back from there, if the system can be brought to it
  std::map<std::string, std::string> texts = {};  ///< further files by name, e.g. the tokenizer
};

/// One save. begin, publish and abandon are collective and for the main thread; write calls neither MPI nor HDF5 and
/// may run on another thread between them.
class CheckpointSave {
 public:
  CheckpointSave(std::string folder, Communicator& communicator, SaveHook hook = nullptr);

  /// Attempt, files and their space on the disk.
  void begin(const Schema& schema, const SaveRequest& request);
  /// The state, by way of `buffer`, to the disk and back. Keeps its failure for publish.
  void write(const StateSource& source, std::span<float> buffer);
  /// After write: it failed, here. What it keeps is thrown by publish.
  bool failed() const { return failure_ != nullptr; }
  /// Agrees that all was written, then view, manifest and rename. Gives the checkpoint's path.
  std::string publish();

 private:
  void run_phase(const std::function<void()>& work);
  void reserve();
  void write_manifest();
  void gather_shards();

  std::string folder_;
  Communicator& communicator_;
  SaveHook hook_;
  SaveRequest request_;
  Schema schema_;
  std::string attempt_;
  std::unique_ptr<ShardFile> shard_;
  CheckpointShard sealed_;
  std::vector<CheckpointShard> shards_;  ///< of all ranks, on rank 0
  std::exception_ptr failure_;
};

/// All of it, synchronously. Collective.
std::string save_checkpoint(const std::string& folder, const StateSource& source, const SaveRequest& request,
                            std::span<float> buffer, Communicator& communicator, const SaveHook& hook = nullptr);

/// The steps of rank 0 after the shards: view, manifest, syncs. For save and for programs that write a layout without
/// its ranks.
void complete_attempt(const std::string& attempt, const Schema& schema, const SaveRequest& request,
                      std::vector<CheckpointShard> shards, const SaveHook& hook = nullptr);

}  // namespace llmtrain
