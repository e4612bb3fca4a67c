#pragma once
// The weights of a checkpoint, of whatever number of shards, read where they are wanted.

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/manifest.hpp"
#include "core/files/file_handle.hpp"

namespace llmtrain {

/// Of a verified checkpoint. Keeps where things lie, a few open files, and no values.
class CheckpointWeights {
 public:
  CheckpointWeights(const std::string& path, const Manifest& manifest);

  /// Elements [begin, end) of a unit, fp32.
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
