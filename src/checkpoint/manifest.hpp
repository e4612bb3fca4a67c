#pragma once
// manifest.json, written last: a checkpoint is one only if every byte of its files is what the manifest says.
//
//   {"hash":"<XXH3-128 of what follows, to before the last brace>","manifest":{...}}

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/schema.hpp"
#include "core/files/content_hash.hpp"

namespace llmtrain {

class JsonNode;

inline constexpr int64_t checkpoint_version = 1;
inline constexpr const char* manifest_name = "manifest.json";
inline constexpr const char* view_name = "view.h5";
inline constexpr int64_t max_manifest_bytes = int64_t{64} << 20;

struct CheckpointFile {
  std::string name;
  int64_t bytes = 0;
  Digest hash;  ///< XXH3-128 over the XXH3-128 digests of its pieces of 1 MiB (content_hash.hpp)
  bool operator==(const CheckpointFile&) const = default;
};

/// A shard, which is of one rank, and where its index lies, so that it is read without HDF5. Shards may share a file.
struct CheckpointShard {
  CheckpointFile file;
  int64_t index_offset = 0;
  int64_t index_bytes = 0;
  bool operator==(const CheckpointShard&) const = default;
};

/// What the run needs besides tensors; everything else is a function of (deck, step).
struct RunState {
  std::map<std::string, int64_t> counters;  ///< e.g. tokens seen; early stopping's evaluations without progress
  std::map<std::string, double> values;     ///< e.g. the best metric
  std::string parameters;                   ///< hash of the parameters as in the ledger, or empty
  std::string attention;  ///< the library that computed it where it could; empty: ours, or not recorded
  /// The files that the deck names, by content; empty in checkpoints of older versions.
  std::vector<NamedContent> contents;
  /// Steps [first, last) of the data that are left out, in order.
  std::vector<std::pair<int64_t, int64_t>> skipped;
  bool operator==(const RunState&) const = default;
};

struct Manifest {
  int64_t step = 0;
  std::string program;  ///< name and version
  std::string deck;     ///< resolved
  Schema schema;
  std::vector<CheckpointShard> shards;
  std::vector<CheckpointFile> files;  ///< the others
  int64_t ledger_bytes = 0;           ///< up to this step
  Digest ledger_hash;                 ///< of these bytes, as of a file
  RunState run;
  bool operator==(const Manifest&) const = default;

  /// Those of shards first, each once.
  std::vector<CheckpointFile> all_files() const;
};

/// "shard-00000-of-00004.h5": a file of one shard or more.
std::string shard_name(int64_t file, int64_t files);
/// Where the datasets of a shard are in its file: "", or "/rank-00003" where shards share files.
std::string group_of_shard(int64_t shard, int64_t shards, int64_t files);
/// Files that hold these shards.
int64_t count_files(const std::vector<CheckpointShard>& shards);

std::string to_text(const Manifest& manifest);
/// UserError(bad_content) beginning with `source`; the text may be hostile.
Manifest parse_manifest(std::string_view text, const std::string& source);

/// A hash as a checkpoint's files have it.
Digest digest_from(const JsonNode& node);

}  // namespace llmtrain
