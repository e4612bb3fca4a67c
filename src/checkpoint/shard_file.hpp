#pragma once
// The HDF5 file of one rank: a contiguous dataset per kind of state and unit, /master/<unit>, /m/<unit>, /v/<unit>, and
// /index. HDF5 lays the file out on the main thread and is closed; the bytes are then written at the datasets' offsets
// with pwrite, by any thread.

#include <functional>
#include <span>
#include <string>

#include "checkpoint/manifest.hpp"
#include "checkpoint/shard_index.hpp"
#include "checkpoint/state.hpp"
#include "core/file_handle.hpp"

namespace llmtrain {

/// Called before each file operation with its name: tests stop there. What it throws ends the save.
using SaveHook = std::function<void(const std::string& operation)>;

class ShardFile {
 public:
  /// Creates `folder`/shard-... with all datasets. Main thread only.
  ShardFile(const std::string& folder, const Schema& schema, int64_t step, int64_t shard, int64_t shards);

  int64_t bytes() const { return bytes_; }
  /// False when the disk has no room for the file.
  bool reserve() const { return file_.reserve(bytes_); }

  // Any thread.
  /// Copies the state through `buffer` into the file and keeps its hashes.
  void write_state(const StateSource& source, std::span<float> buffer, const SaveHook& hook);
  /// Writes the index, syncs, reads the whole file back and compares it with what was in memory.
  CheckpointShard seal(const SaveHook& hook, bool from_disk = true);

 private:
  void create(const std::string& path, const Schema& schema);
  void lay_out(int64_t hdf5_file, const Schema& schema);

  ShardIndex index_;
  std::vector<int64_t> units_;  ///< of each entry
  FileHandle file_;
  int64_t bytes_ = 0;
  int64_t index_offset_ = 0;
  std::string name_;
};

/// Reads a file in pieces of 1 MiB and gives its size and hash; `see(offset, data, bytes)` gets each piece.
using SeePiece = std::function<void(int64_t offset, const char* data, int64_t bytes)>;
CheckpointFile digest_file(const FileHandle& file, const std::string& name, const SeePiece& see = nullptr);

}  // namespace llmtrain
