#pragma once
// Index of a shard: the offsets of its parts in the file, and their hashes. It is JSON in a separate dataset, whose
// location is in the manifest, so that a resume needs no HDF5.

#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/manifest.hpp"
#include "checkpoint/schema.hpp"
#include "core/files/folder_handle.hpp"

namespace llmtrain {

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

}  // namespace llmtrain
