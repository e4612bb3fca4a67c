#pragma once
// The index of a shard: where the bytes of its parts lie in the file, and their hashes. JSON in a dataset of its own,
// whose place the manifest tells, so that a resume needs no HDF5.

#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/manifest.hpp"
#include "checkpoint/schema.hpp"
#include "core/files/folder_handle.hpp"

namespace llmtrain {

struct IndexEntry {
  StatePart part;
  int64_t offset = 0;  ///< bytes from the begin of the file
  Digest hash;         ///< XXH3-128 of the part's bytes
};

struct ShardIndex {
  int64_t step = 0;
  int64_t shard = 0;
  int64_t shards = 1;
  std::vector<IndexEntry> entries;
};

/// Of the same length whatever the hashes.
std::string to_text(const ShardIndex& index);
/// The index of a shard. UserError(bad_content) beginning with `source` unless it is the one
/// that the manifest's schema and step demand, with every part inside of the file.
ShardIndex parse_shard_index(std::string_view text, const Manifest& manifest, int64_t shard, const std::string& source);
/// The same from the shard's file.
ShardIndex read_shard_index(const FileHandle& file, const Manifest& manifest, int64_t shard);

}  // namespace llmtrain
