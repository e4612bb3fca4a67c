#pragma once
// Saving. Everything is written to an attempt's folder and becomes visible by one rename, after it was synced, read
// back and compared. All ranks agree after each phase; a failure on any rank ends the save on all of them with one
// UserError, removes the attempt and keeps the older checkpoints.

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

/// Rank 0's description of the run; the save adds schema and files to the manifest.
struct SaveRequest {
  int64_t step = 0;
  std::string program;
  std::string deck;
  int64_t ledger_bytes = 0;
  Digest ledger_hash;
  RunState run;
  std::optional<FrozenWeights> frozen = {};
  bool best = false;      ///< True if the link `best` will point here
  bool from_disk = true;  ///< True if the written bytes are read back from the disk itself, if the system supports it
  std::map<std::string, std::string> texts = {};  ///< further files by name, e.g. the tokenizer
  /// File of every rank, in the order of the files' first ranks; empty: one per rank.
  std::vector<int64_t> file_of_rank = {};
  int64_t tensor_ranks = 1;  ///< parallel.tensor
  int64_t expert_ranks = 1;  ///< parallel.expert

  Sharding sharding(int64_t shards, const Schema& schema) const {
    return {shards, tensor_ranks, schema.tensor_blocks, expert_ranks, schema.expert_blocks};
  }
};

/// One save: begin, write, digest if needed, gather, complete, publish. begin, gather and publish are collective and
/// for the main thread; the others call no MPI and may run on another thread in between. They store a failure for the
/// next collective call, which throws it on all ranks.
class CheckpointSave {
 public:
  CheckpointSave(std::string folder, Communicator& communicator, SaveHook hook = nullptr);

  /// Makes the attempt and its files, and reserves their space on the disk.
  void begin(const Schema& schema, const SaveRequest& request);
  /// Writes the state through `buffer` to the disk and reads it back.
  void write(const StateSource& source, std::span<float> buffer);
  /// If ranks share files, digest() computes this rank's share of their hashes after all have written.
  bool needs_digest() const { return shared_.files > 0 && !digested_; }
  void digest();
  /// True if this rank has failed.
  bool failed() const { return failure_ != nullptr; }
  /// Agrees that all ranks have written.
  void gather();
  bool is_gathered() const { return gathered_; }
  /// Writes view, texts and manifest, on rank 0.
  void complete();
  /// Returns the checkpoint's path.
  std::string publish();

 private:
  Sharding sharding() const { return request_.sharding(communicator_.size(), schema_); }
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
  SharedFile shared_{0, 0, {}};  ///< files: 0 if every rank has a file to itself
  std::vector<Digest> pieces_;   ///< hashes of this rank's share of the shared file
  bool digested_ = false, gathered_ = false;
  CheckpointShard sealed_;
  std::vector<CheckpointShard> shards_;  ///< shards of all ranks, on rank 0
  std::exception_ptr failure_;
};

/// Rank 0's steps after the shards: view, manifest, syncs. Used by save, and by programs that write a layout without
/// its ranks.
void complete_attempt(const std::string& attempt, const Schema& schema, const SaveRequest& request,
                      std::vector<CheckpointShard> shards, const SaveHook& hook = nullptr);

}  // namespace llmtrain
