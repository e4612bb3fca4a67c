#pragma once
// A state whose every element is a function of (step, plane, unit, element), for any shard of any number of shards.

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint_reader.hpp"
#include "checkpoint/checkpoint_writer.hpp"
#include "checkpoint/shard_file.hpp"
#include "core/error.hpp"
#include "harness/harness.hpp"

namespace llmtrain {

/// Saves synchronously in one call. Collective.
inline std::string save_checkpoint(const std::string& folder, const StateSource& source, const SaveRequest& request,
                                   std::span<float> buffer, Communicator& communicator,
                                   const SaveHook& hook = nullptr) {
  CheckpointSave save(folder, communicator, hook);
  save.begin(source.schema(), request);
  save.write(source, buffer);
  if (save.needs_digest()) {
    communicator.barrier();
    save.digest();
  }
  save.gather();
  save.complete();
  return save.publish();
}

}  // namespace llmtrain

namespace llmtrain::test {

/// Three units: a matrix and a vector each; the second has a matrix of three slices, one of them stored transposed.
inline std::vector<UnitSpec> toy_specs(int64_t rows = 100) {
  const auto matrix = [](std::string name, int64_t n, int64_t columns, std::vector<ParamSlice> slices) {
    return ParamSpec{std::move(name), n, columns, true, Initializer::zeros(), std::move(slices)};
  };
  return {{"embedding", {matrix("wte", rows, 7, {{"wte.weight", 0, rows}})}},
          {"block 0",
           {matrix("attn", 48, 16, {{"h.0.q", 0, 16}, {"h.0.k", 16, 16}, {"h.0.v", 32, 16, true}}),
            {"norm", 16, 1, false, Initializer::ones(), {{"h.0.norm.weight", 0, 16}}}}},
          {"head", {{"ln_f", 300, 1, false, Initializer::ones(), {{"ln_f.weight", 0, 300}}}}}};
}

/// Returns bits of every exponent, NaN included: they must be copied unchanged.
inline float toy_value(int64_t step, size_t plane, int64_t unit, int64_t element) {
  uint64_t x = static_cast<uint64_t>(step) * 4 + static_cast<uint64_t>(plane);
  x = (x * 1000003 + static_cast<uint64_t>(unit)) * 1000000007 + static_cast<uint64_t>(element) + 1;
  x = (x ^ (x >> 31)) * 0x9e3779b97f4a7c15u;
  const auto bits = static_cast<uint32_t>(x >> 32);
  float value = 0;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

inline bool same_bits(float a, float b) { return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b); }

class ToySource : public StateSource {
 public:
  ToySource(Schema schema, int64_t step) : schema_(std::move(schema)), step_(step) {}
  Schema schema() const override { return schema_; }
  void read(int64_t unit, size_t plane, int64_t begin, int64_t count, void* out) const override {
    for (int64_t i = 0; i < count; ++i) static_cast<float*>(out)[i] = toy_value(step_, plane, unit, begin + i);
  }

 private:
  Schema schema_;
  int64_t step_;
};

/// Counts the elements that arrive: those equal to toy_value(step), and others.
class ToyTarget : public StateTarget {
 public:
  ToyTarget(Schema schema, int64_t step, int64_t rank, const Sharding& ranks)
      : schema_(std::move(schema)), step_(step), rank_(rank), ranks_(ranks) {}
  Schema schema() const override { return schema_; }
  std::vector<ShardBorders> wanted(int64_t unit) const override {
    return parts_of_shard(schema_.units[static_cast<size_t>(unit)], rank_, ranks_);
  }
  void write(int64_t unit, size_t plane, int64_t begin, int64_t count, const void* values) override {
    for (int64_t i = 0; i < count; ++i) {
      const float value = static_cast<const float*>(values)[i];
      ++(same_bits(value, toy_value(step_, plane, unit, begin + i)) ? right : wrong);
    }
  }
  void finish() override { finished = true; }
  int64_t wanted_elements() const {
    int64_t n = 0;
    for (size_t u = 0; u < schema_.units.size(); ++u) {
      for (const ShardBorders& own : wanted(static_cast<int64_t>(u))) n += 3 * (own.end - own.begin);
    }
    return n;
  }

  int64_t right = 0, wrong = 0;
  bool finished = false;

 private:
  Schema schema_;
  int64_t step_, rank_;
  Sharding ranks_;
};

inline SaveRequest toy_request(int64_t step) {
  SaveRequest request{step, "llmtrain test", "[run]\nname = toy\n", 100 * step, digest_of(&step, sizeof(step)), {}};
  request.run.counters = {{"tokens", step * 4096}, {"patience", 1}};
  request.run.values = {{"best", 0.1 * static_cast<double>(step)}};
  request.run.skipped = {{3, 5}};
  request.best = step % 2 == 0;
  return request;
}

/// Writes a checkpoint of `shards` shards in one process.
inline std::string write_layout(const std::string& folder, const Schema& schema, int64_t step, const Sharding& shards,
                                const SaveHook& hook = nullptr) {
  const std::string attempt = create_attempt(folder, step, hook);
  std::vector<CheckpointShard> sealed;
  std::vector<float> buffer(1000);
  for (int64_t s = 0; s < shards.count; ++s) {
    ShardFile file(attempt, schema, step, s, shards);
    EXPECT_TRUE(file.reserve());
    file.write_state(ToySource(schema, step), buffer, hook);
    sealed.push_back(file.seal(hook));
  }
  SaveRequest request = toy_request(step);
  request.tensor_ranks = shards.tensor;
  request.expert_ranks = shards.expert;
  complete_attempt(attempt, schema, request, sealed, hook);
  publish_attempt(folder, attempt, step, hook);
  return folder + "/" + checkpoint_name(step);
}

/// The same with shards that share files; `file_of_shard` numbers the files in the order of their first shards.
inline std::string write_shared_layout(const std::string& folder, const Schema& schema, int64_t step,
                                       const std::vector<int64_t>& file_of_shard, int64_t tensor_ranks = 1) {
  const std::string attempt = create_attempt(folder, step, nullptr);
  const Sharding shards(std::ssize(file_of_shard), tensor_ranks, schema.tensor_blocks);
  std::vector<SharedFile> files(static_cast<size_t>(*std::ranges::max_element(file_of_shard)) + 1);
  for (int64_t s = 0; s < shards.count; ++s) {
    const int64_t file = file_of_shard[static_cast<size_t>(s)];
    files[static_cast<size_t>(file)].file = file;
    files[static_cast<size_t>(file)].shards.push_back(s);
  }
  std::vector<CheckpointShard> sealed(file_of_shard.size());
  std::vector<float> buffer(1000);
  for (SharedFile& shared : files) {
    shared.files = std::ssize(files);
    ShardFile::create_shared(attempt, shared, schema, step, shards);
    for (const int64_t s : shared.shards) {
      ShardFile file(attempt, shared, schema, step, s, shards);
      file.write_state(ToySource(schema, step), buffer, nullptr);
      sealed[static_cast<size_t>(s)] = file.seal(nullptr);
    }
    const FileHandle whole = FileHandle::open_to_read(attempt + "/" + shard_name(shared.file, shared.files));
    const Digest hash = digest_file(whole, "").hash;
    for (const int64_t s : shared.shards) sealed[static_cast<size_t>(s)].file.hash = hash;
  }
  SaveRequest request = toy_request(step);
  request.tensor_ranks = tensor_ranks;
  complete_attempt(attempt, schema, request, sealed);
  publish_attempt(folder, attempt, step, nullptr);
  return folder + "/" + checkpoint_name(step);
}

inline std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
inline void put_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

/// Folder of this test, the same on all ranks, removed afterwards.
class ToyFolder {
 public:
  explicit ToyFolder(const std::string& name) {
    path_ = (std::filesystem::temp_directory_path() / (name + "_" + std::to_string(getpid()))).string();
    communicator().broadcast(path_);
  }
  ~ToyFolder() {
    communicator().barrier();
    if (communicator().rank() == 0) std::filesystem::remove_all(path_);
  }
  ToyFolder(const ToyFolder&) = delete;
  ToyFolder& operator=(const ToyFolder&) = delete;
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  /// Returns everything except published checkpoints and links.
  int64_t leftovers() const {
    int64_t n = 0;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) {
      if (entry.path().filename().string().starts_with('.')) ++n;
    }
    return n;
  }

 private:
  std::string path_;
};

}  // namespace llmtrain::test
