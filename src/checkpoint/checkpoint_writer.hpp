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
  /// The file of every rank, numbered in the order of their first ranks; empty: one each.
  std::vector<int64_t> file_of_rank = {};
};

/// One save: begin, write, digest where it is needed, gather, complete, publish. begin, gather and publish are
/// collective and for the main thread; the others call no MPI and may run on another thread between them. They keep a
/// failure for the next collective one, which throws it on all ranks.
class CheckpointSave {
 public:
  CheckpointSave(std::string folder, Communicator& communicator, SaveHook hook = nullptr);

  /// Attempt, files and their space on the disk.
  void begin(const Schema& schema, const SaveRequest& request);
  /// The state, by way of `buffer`, to the disk and back.
  void write(const StateSource& source, std::span<float> buffer);
  /// Ranks share files: when all have written, each has its share of their hashes to make.
  bool needs_digest() const { return shared_.files > 0 && !digested_; }
  void digest();
  /// It failed, here.
  bool failed() const { return failure_ != nullptr; }
  /// Agrees that all was written.
  void gather();
  bool is_gathered() const { return gathered_; }
  /// View, texts and manifest, on rank 0.
  void complete();
  /// Gives the checkpoint's path.
  std::string publish();

 private:
  void run_phase(const std::function<void()>& work);
  void reserve();
  void create_shard();
  void gather_shards();

  std::string folder_;
  Communicator& communicator_;
  SaveHook hook_;
  SaveRequest request_;
  Schema schema_;
  std::string attempt_;
  std::unique_ptr<ShardFile> shard_;
  SharedFile shared_{0, 0, {}};  ///< files: 0 where every rank has its own
  std::vector<Digest> pieces_;   ///< of the shared file, this rank's share
  bool digested_ = false, gathered_ = false;
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
