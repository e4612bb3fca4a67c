#pragma once
// manifest.json, written last: a folder is a checkpoint only if every byte of its files matches the manifest.
//
//   {"hash":"<XXH3-128 of the text that follows, up to the last brace>","manifest":{...}}

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/schema.hpp"
#include "core/files/content_hash.hpp"
#include "core/files/json_node.hpp"

namespace llmtrain {

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

/// Shard of one rank, with the location of its index, so that it is read without HDF5. Shards can share a file.
struct CheckpointShard {
  CheckpointFile file;
  int64_t index_offset = 0;
  int64_t index_bytes = 0;
  bool operator==(const CheckpointShard&) const = default;
};

/// State of the run other than tensors; everything else is a function of (deck, step).
struct RunState {
  std::map<std::string, int64_t> counters;  ///< for example tokens seen; evaluations without progress (early stopping)
  std::map<std::string, double> values;     ///< for example the best metric
  std::string parameters;                   ///< hash of the parameters as in the ledger, or empty
  std::string attention;  ///< library that computed attention if possible; empty: our kernel, or not recorded
  std::string products;   ///< library that computed matrix products on a GPU; empty: the host, or not recorded
  /// Files of the deck, by content; empty in checkpoints of older versions.
  std::vector<NamedContent> contents;
  /// Steps [first, last) of the data that are omitted, in order.
  std::vector<std::pair<int64_t, int64_t>> skipped;
  bool operator==(const RunState&) const = default;
};

/// Weights that a run does not train, and that its checkpoints do not contain.
struct FrozenWeights {
  std::string path = {};  ///< folder that they are read from; empty: initialised from the seed
  int64_t bytes = 0;      ///< size of its files
  std::string hash = {};  ///< of the frozen tensors (LoadReport::hash)
  int64_t seed = 0;
  int64_t rows = 0;  ///< of the embedding in these files, if the run added rows (DecoderShape::stored_rows)
  bool operator==(const FrozenWeights&) const = default;
};
/// Throws UserError(bad_content) beginning with `checkpoint` if these are not the weights that it was saved with.
void require_same(const FrozenWeights& saved, const FrozenWeights& now, const std::string& checkpoint);

struct Manifest {
  int64_t step = 0;
  std::string program;  ///< name and version
  std::string deck;     ///< resolved deck
  Schema schema;
  std::vector<CheckpointShard> shards;
  std::vector<CheckpointFile> files;  ///< all other files
  int64_t ledger_bytes = 0;           ///< bytes of the ledger up to this step
  Digest ledger_hash;                 ///< hash of these bytes, computed like a file's
  RunState run;
  std::optional<FrozenWeights> frozen = {};
  int64_t tensor_ranks = 1;  ///< parallel.tensor of the run that wrote it
  int64_t expert_ranks = 1;  ///< parallel.expert
  bool operator==(const Manifest&) const = default;

  Sharding sharding() const {
    return {std::ssize(shards), tensor_ranks, schema.tensor_blocks, expert_ranks, schema.expert_blocks};
  }
  /// Returns all files, those of shards first, each once.
  std::vector<CheckpointFile> all_files() const;
};

/// Assignment of shards to files.
struct SharedFile {
  int64_t file = 0, files = 1;
  std::vector<int64_t> shards;  ///< shards of this file
};

/// Returns "shard-00000-of-00004.h5": a file of one shard or more. More files than a folder has are in folders:
/// "shards-00001/shard-00256-of-00512.h5".
std::string shard_name(int64_t file, int64_t files);
inline constexpr int64_t files_of_folder = 256;
/// Prefix of the names of these files and folders, which no other file has.
inline constexpr std::string_view shard_prefix = "shard";
/// Returns the group of a shard's datasets in its file: "", or "/rank-00003" if shards share files.
std::string group_of_shard(int64_t shard, int64_t shards, int64_t files);
/// Returns the files that hold these shards.
int64_t count_files(const std::vector<CheckpointShard>& shards);

std::string to_text(const Manifest& manifest);
/// Throws UserError(bad_content) beginning with `source`; the text is untrusted.
Manifest parse_manifest(std::string_view text, const std::string& source);

/// A hash as a checkpoint's files have it.
Digest digest_from(const JsonNode& node);

}  // namespace llmtrain
