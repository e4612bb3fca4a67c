#include "checkpoint/checkpoint_weights.hpp"

#include <algorithm>
#include <tuple>

#include "checkpoint/shard_file.hpp"
#include "core/error.hpp"
#include "core/files/folder_handle.hpp"

namespace llmtrain {

namespace {
constexpr size_t max_open = 256;
}

UnitBlocks blocks_of_units(const Schema& schema) {
  UnitBlocks blocks;
  for (const TensorSchema& tensor : schema.tensors) {
    blocks[tensor.name].push_back({static_cast<int>(tensor.unit), tensor.offset, tensor.rows,
                                   std::max<int64_t>(tensor.columns, 1), tensor.place()});
  }
  return blocks;
}

CheckpointWeights::CheckpointWeights(const std::string& path, const Manifest& manifest)
    : path_(path), files_(manifest.shards.size()) {
  for (const CheckpointShard& shard : manifest.shards) shards_.push_back(shard.file);
  for (size_t shard = 0; shard < shards_.size(); ++shard) {
    const ShardIndex index = read_shard_index(file(shard), manifest, static_cast<int64_t>(shard));
    for (const IndexEntry& entry : index.entries) {
      if (entry.range.plane != master_plane) continue;
      const int64_t unit = manifest.schema.tensors[static_cast<size_t>(entry.range.tensor)].unit;
      runs_.push_back({unit, entry.range.begin, entry.range.end, shard, entry.offset});
    }
  }
  std::ranges::sort(runs_, {}, [](const Run& run) { return std::tuple(run.unit, run.begin); });
}

const FileHandle& CheckpointWeights::file(size_t shard) {
  FileHandle& handle = files_[shard];
  if (!handle.path().empty()) return handle;
  if (open_ == max_open) {
    for (FileHandle& other : files_) other = FileHandle();
    open_ = 0;
  }
  handle = FolderHandle::open(path_, FolderHandle::Links::refused).open_to_read(shards_[shard].name);
  ++open_;
  return handle;
}

void CheckpointWeights::read(int64_t unit, int64_t begin, int64_t end, float* out) {
  const auto ends_behind = [](const std::tuple<int64_t, int64_t>& place, const Run& run) {
    return place < std::tuple(run.unit, run.end);
  };
  auto run = std::upper_bound(runs_.begin(), runs_.end(), std::tuple(unit, begin), ends_behind);
  for (int64_t at = begin; at < end; ++run) {
    const bool there = run != runs_.end() && run->unit == unit && run->begin <= at;
    LLMTRAIN_CHECK(there, path_ + ": elements are missing from all shards");
    const int64_t count = std::min(end, run->end) - at;
    constexpr int64_t width = sizeof(float);
    file(run->shard).read(run->offset + (at - run->begin) * width, count * width, out + (at - begin));
    at += count;
  }
}

}  // namespace llmtrain
