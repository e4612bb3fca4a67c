#pragma once
// HDF5 file of one rank: a contiguous dataset per plane of the state and unit, /master/<unit>, /m/<unit>, ..., and
// /index. HDF5 lays the file out on the main thread and is closed; any thread then writes the bytes at the datasets'
// offsets with pwrite. A file of several ranks has the same datasets in one group per rank, /rank-00003/master/<unit>,
// and add_unit_views() shows them together.

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/manifest.hpp"
#include "checkpoint/schema.hpp"
#include "checkpoint/state.hpp"
#include "core/files/folder_handle.hpp"

namespace llmtrain {

// Index of a shard: the offsets of its parts in the file, and their hashes. It is JSON in a separate dataset, whose
// location is in the manifest, so that a resume needs no HDF5.

struct IndexEntry {
  StateRange range;
  int64_t offset = 0;  ///< bytes from the beginning of the file
  Digest hash;         ///< XXH3-128 of the part's bytes
};

struct ShardIndex {
  int64_t step = 0;
  int64_t shard = 0;
  int64_t shards = 1;
  std::vector<IndexEntry> entries;
};

/// The length does not depend on the hashes.
std::string to_text(const ShardIndex& index);
/// Parses the index of a shard. Throws UserError(bad_content) beginning with `source` unless it matches the manifest's
/// schema and step, with every part inside the file.
ShardIndex parse_shard_index(std::string_view text, const Manifest& manifest, int64_t shard, const std::string& source);
/// Reads it from the shard's file.
ShardIndex read_shard_index(const FileHandle& file, const Manifest& manifest, int64_t shard);

/// Called before each file operation with its name, where tests can interrupt. An exception from it ends the save.
using SaveHook = std::function<void(const std::string& operation)>;
inline void call(const SaveHook& hook, const std::string& operation) {
  if (hook) hook(operation);
}

class ShardFile {
 public:
  /// Creates `folder`/shard-... with all datasets. Main thread only.
  ShardFile(const std::string& folder, const Schema& schema, int64_t step, int64_t shard, const Sharding& shards);
  /// Opens one of several shards in a file of create_shared. Main thread only.
  ShardFile(const std::string& folder, const SharedFile& shared, const Schema& schema, int64_t step, int64_t shard,
            const Sharding& shards);
  static void create_shared(const std::string& folder, const SharedFile& shared, const Schema& schema, int64_t step,
                            const Sharding& shards);

  /// Size of the whole file.
  int64_t bytes() const { return bytes_; }
  /// Returns false if the disk has no room for the file.
  bool reserve() const { return file_.reserve(bytes_); }

  // The following functions can be called from any thread.
  /// Copies the state through `buffer` into the file and keeps its hashes.
  void write_state(const StateSource& source, std::span<float> buffer, const SaveHook& hook);
  /// Writes the index, syncs, reads the whole file back and compares it with the memory. In a shared file it reads its
  /// own shard; the file's hash is computed after all ranks have written.
  CheckpointShard seal(const SaveHook& hook, bool from_disk = true);
  /// Returns the digests of the pieces [first, last) of 1 MiB of the whole file.
  std::vector<Digest> digest_pieces(int64_t first, int64_t last) const;

 private:
  ShardFile(const Schema& schema, int64_t step, int64_t shard, const Sharding& shards);
  /// Creates or finds the datasets of this shard in a group of the file.
  void lay_out(int64_t group, const Schema& schema, bool create);
  void open(const std::string& path);
  CheckpointShard seal_file(const std::string& index);
  CheckpointShard seal_shard(const std::string& index);

  int64_t bytes_of_entry(size_t entry) const { return planes_[entry].bytes(size_of_range(entry)); }
  int64_t size_of_range(size_t entry) const {
    return index_.entries[entry].range.end - index_.entries[entry].range.begin;
  }

  StatePlanes states_;
  ShardIndex index_;
  std::vector<int64_t> units_;      ///< unit of each entry
  std::vector<StatePlane> planes_;  ///< plane of each entry
  FileHandle file_;
  int64_t bytes_ = 0;
  int64_t index_offset_ = 0;
  std::string name_;
  bool shared_ = false;
};

/// Reads a file in pieces of 1 MiB and returns its size and hash; `see(offset, data, bytes)` receives each piece.
using SeePiece = std::function<void(int64_t offset, const char* data, int64_t bytes)>;
CheckpointFile digest_file(const FileHandle& file, const std::string& name, const SeePiece& see = nullptr);

}  // namespace llmtrain
