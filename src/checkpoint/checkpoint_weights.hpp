#pragma once
// Random access to the weights of a checkpoint with any number of shards.

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/manifest.hpp"
#include "core/files/file_handle.hpp"
#include "params/whole_units.hpp"

namespace llmtrain {

/// The tensors of a checkpoint, and its units.
UnitBlocks blocks_of_units(const Schema& schema);

/// Weights of a verified checkpoint. It keeps locations and a few open files, but no values.
class CheckpointWeights {
 public:
  CheckpointWeights(const std::string& path, const Manifest& manifest);

  /// Reads elements [begin, end) of a unit, fp32.
  void read(int64_t unit, int64_t begin, int64_t end, float* out);

 private:
  /// Elements [begin, end) of a unit, in the file of a shard.
  struct Run {
    int64_t unit;
    int64_t begin;
    int64_t end;
    size_t shard;
    int64_t offset;  ///< bytes
  };
  const FileHandle& file(size_t shard);

  std::string path_;
  std::vector<CheckpointFile> shards_;
  std::vector<FileHandle> files_;  ///< by shard; one without a path is not open
  size_t open_ = 0;
  std::vector<Run> runs_;  ///< by unit and element
};

}  // namespace llmtrain
