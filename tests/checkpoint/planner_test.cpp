// Plans of checkpoints of 4,096 ranks, for a model of 70 billion parameters, without its data: names, borders, the
// ranges that a resume reads.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <iostream>
#include <map>
#include <numeric>
#include <set>

#include "checkpoint/toy_state.hpp"
#include "core/files/hdf5_handle.hpp"

namespace llmtrain {
namespace {

constexpr int64_t shards = 4096, nodes = 512;

/// Llama 3 70B in its real size.
std::vector<UnitSpec> llama_70b() {
  const auto tensor = [](const std::string& name, int64_t rows, int64_t columns) {
    return ParamSpec{name, rows, columns, columns > 1, Initializer::zeros(), {{name, 0, rows}}};
  };
  std::vector<UnitSpec> units{{"embedding", {tensor("embed", 128256, 8192)}}};
  for (int b = 0; b < 80; ++b) {
    const std::string prefix = fmt::format("layers.{}.", b);
    units.push_back(
        {fmt::format("block {}", b),
         {tensor(prefix + "qkv", 10240, 8192), tensor(prefix + "o", 8192, 8192), tensor(prefix + "up", 57344, 8192),
          tensor(prefix + "down", 8192, 28672), tensor(prefix + "norms", 16384, 1)}});
  }
  units.push_back({"head", {tensor("lm_head", 128256, 8192), tensor("norm", 8192, 1)}});
  return units;
}

class Planner : public ::testing::Test {
 protected:
  Planner() : schema_(make_schema(llama_70b())) {}

  /// Shards of `count` that hold elements which rank `rank` of `size` needs, by the fast way and by comparison.
  std::set<int64_t> marked(int64_t rank, int64_t size, int64_t count) const {
    std::vector<uint8_t> marks(static_cast<size_t>(count));
    for (const UnitSchema& unit : schema_.units) {
      for (const ShardBorders& part : parts_of_shard(unit, rank, size))
        mark_shards(unit, part, std::ssize(marks), marks);
    }
    std::set<int64_t> found;
    for (int64_t s = 0; s < count; ++s) {
      if (marks[static_cast<size_t>(s)] != 0) found.insert(s);
    }
    return found;
  }
  std::set<int64_t> compared(int64_t rank, int64_t size, int64_t count) const {
    std::set<int64_t> found;
    for (const UnitSchema& unit : schema_.units) {
      const std::vector<ShardBorders> needed = parts_of_shard(unit, rank, size);
      for (int64_t s = 0; s < count; ++s) {
        for (const ShardBorders& own : parts_of_shard(unit, s, count)) {
          for (const ShardBorders& part : needed) {
            if (std::max(own.begin, part.begin) < std::min(own.end, part.end)) found.insert(s);
          }
        }
      }
    }
    return found;
  }

  const Schema schema_;
};

TEST_F(Planner, ARankFindsItsShardsWithoutTheOthers) {
  for (const auto& [rank, size, count] : std::vector<std::array<int64_t, 3>>{
           {0, 1, 7}, {0, 3, 5}, {2, 3, 5}, {4, 5, 3}, {1, 2, 64}, {63, 64, 2}, {6, 7, 7}}) {
    EXPECT_EQ(marked(rank, size, count), compared(rank, size, count)) << rank << " of " << size << ", " << count;
  }
  EXPECT_NE(marked(0, 3, 5), marked(2, 3, 5)) << "the comparison sees a difference";
  // In a job that resumes on as many ranks each one reads its own shard.
  for (int64_t rank = 0; rank < shards; rank += 63) {
    ASSERT_EQ(marked(rank, shards, shards), std::set<int64_t>{rank});
  }
  EXPECT_LE(marked(1000, 3000, shards).size(), 4u);
}

TEST_F(Planner, TheShardsAreEverythingOnce) {
  int64_t elements = 0;
  for (int64_t s = 0; s < shards; ++s) {
    for (const StateRange& range : ranges_of_shard(schema_, s, shards)) {
      if (range.plane == master_plane) elements += range.end - range.begin;
    }
  }
  EXPECT_EQ(elements, std::accumulate(schema_.units.begin(), schema_.units.end(), int64_t{0},
                                      [](int64_t n, const UnitSchema& unit) { return n + unit.elements; }));
}

TEST_F(Planner, FilesAreInFoldersOf256) {
  EXPECT_EQ(shard_name(255, 256), "shard-00255-of-00256.h5") << "as in older checkpoints";
  EXPECT_EQ(shard_name(256, nodes), "shards-00001/shard-00256-of-00512.h5");
  std::map<std::string, int64_t> folders;
  for (int64_t file = 0; file < shards; ++file) {
    const std::string name = shard_name(file, shards);
    ++folders[name.substr(0, name.find('/'))];
  }
  EXPECT_EQ(folders.size(), 16u);
  for (const auto& [folder, files] : folders) EXPECT_EQ(files, files_of_folder) << folder;
}

/// The shards of a job, in a file a node.
std::vector<CheckpointShard> shards_in_files(int64_t count, int64_t files) {
  std::vector<CheckpointShard> all;
  for (int64_t s = 0; s < count; ++s) all.push_back({{shard_name(s * files / count, files), 4096, {}}, 0, 100});
  return all;
}

TEST_F(Planner, ViewIsWrittenForManyRanks) {
  const test::ToyFolder folder("llmtrain_planner_test");
  const std::string attempt = create_attempt(folder.path(), 7, nullptr);
  const auto begin = std::chrono::steady_clock::now();
  complete_attempt(attempt, schema_, test::toy_request(7), shards_in_files(shards, nodes));
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const std::string path = attempt + "/" + view_name;
  std::cout << fmt::format("view and manifest of {} shards in {} files: {:.1f} s, {} bytes\n", shards, nodes, seconds,
                           std::filesystem::file_size(path));
  const Hdf5Handle file(H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), H5Fclose);
  for (const UnitSchema& unit : schema_.units) {
    const Hdf5Handle dataset(H5Dopen2(file.get(), ("units/v/" + unit.name).c_str(), H5P_DEFAULT), H5Dclose);
    const Hdf5Handle layout(H5Dget_create_plist(dataset.get()), H5Pclose);
    size_t mappings = 0;
    ASSERT_GE(H5Pget_virtual_count(layout.get(), &mappings), 0) << unit.name;
    EXPECT_GE(mappings, static_cast<size_t>(nodes));
    EXPECT_LE(mappings, static_cast<size_t>(3 * nodes)) << "they grow with the nodes, not with ranks and segments";
  }
}

TEST_F(Planner, ManifestOfManyNodesIsReadAndOldNamesToo) {
  Manifest manifest{7, "llmtrain test", "[run]\nname = toy\n", schema_, shards_in_files(shards, nodes), {}, 100, {}, {},
                    {}};
  EXPECT_EQ(parse_manifest(to_text(manifest), "manifest"), manifest);
  EXPECT_EQ(count_files(manifest.shards), nodes);
  // Older checkpoints have all their files in one folder.
  Manifest flat = manifest;
  for (CheckpointShard& shard : flat.shards) shard.file.name = shard.file.name.substr(shard.file.name.find('/') + 1);
  EXPECT_EQ(parse_manifest(to_text(flat), "manifest"), flat);
  Manifest hostile = manifest;
  for (CheckpointShard& shard : hostile.shards) shard.file.name = "../" + shard.file.name.substr(13);
  EXPECT_THROW(parse_manifest(to_text(hostile), "manifest"), UserError);
}

TEST(Removal, RemovesLargeCheckpointsWithFolders) {
  const test::ToyFolder folder("llmtrain_removal_test");
  for (const int64_t step : {1, 2}) {
    const std::string path = folder / checkpoint_name(step);
    for (int64_t file = 0; file < 600; ++file) {
      const std::string name = path + "/" + shard_name(file, 600);
      std::filesystem::create_directories(std::filesystem::path(name).parent_path());
      test::put_bytes(name, "x");
    }
  }
  remove_checkpoint(folder.path(), 1, nullptr);
  EXPECT_FALSE(std::filesystem::exists(folder / checkpoint_name(1)));
  EXPECT_EQ(folder.leftovers(), 0);
  EXPECT_TRUE(std::filesystem::exists(folder / (checkpoint_name(2) + "/" + shard_name(599, 600))));
}

}  // namespace
}  // namespace llmtrain
