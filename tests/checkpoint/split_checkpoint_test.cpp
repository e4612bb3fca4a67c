// Checkpoints of split matrices: written by any ranks, read by any others, and shown as whole tensors.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/checkpoint_weights.hpp"
#include "checkpoint/toy_state.hpp"
#include "core/files/hdf5_handle.hpp"
#include "harness/split_model.hpp"

namespace llmtrain {
namespace {

using test::SplitModel;
using testing::HasSubstr;

/// The message with which the work ends, which has this code.
std::string verdict(ExitCode code, const std::function<void()>& work) {
  try {
    work();
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), code);
    return error.what();
  }
  return "no error";
}

Schema schema_of(int64_t blocks, int64_t segment_elements = default_segment_elements) {
  return make_schema(SplitModel::units({blocks, 0, blocks}), master_and_moments(), segment_elements);
}

/// The same with two blocks of experts, in units of some blocks of matrices.
Schema schema_with_experts(int64_t blocks, int64_t segment_elements = default_segment_elements) {
  Schema schema = schema_of(blocks, segment_elements);
  schema.expert_blocks = 2;
  for (UnitSchema& unit : schema.units) {
    if (unit.name.starts_with("layer of block")) unit.expert_block = unit.tensor_block % 2;
  }
  return schema;
}

/// Meshes of blocks: ranks, of which so many share matrices, and so many experts.
std::vector<Sharding> meshes(int64_t blocks) {
  std::vector<Sharding> all;
  for (const int64_t tensor : {1, 2, 4}) {
    if (blocks % tensor != 0) continue;
    for (const int64_t others : {1, 3}) all.emplace_back(tensor * others, tensor, blocks, 1, 2);
    all.emplace_back(tensor * 2, tensor, blocks, 2, 2);
  }
  return all;
}

TEST(SplitCheckpoint, ShardsOfAnyMeshHaveEveryValueOnce) {
  for (const int64_t blocks : {2, 4}) {
    const Schema schema = schema_with_experts(blocks, 1024);
    std::vector<StateRange> whole = ranges_of_shard(schema, 0, Sharding(1, 1, blocks, 1, 2));
    for (const Sharding& mesh : meshes(blocks)) {
      int64_t elements = 0, expected = 0;
      for (const StateRange& range : whole) expected += range.end - range.begin;
      for (int64_t s = 0; s < mesh.count; ++s) {
        for (const StateRange& range : ranges_of_shard(schema, s, mesh)) {
          elements += range.end - range.begin;
          const UnitSchema& unit =
              schema.units[static_cast<size_t>(schema.tensors[static_cast<size_t>(range.tensor)].unit)];
          const int64_t block = unit.tensor_block, of_experts = unit.expert_block;
          EXPECT_EQ(s % mesh.tensor, block < 0 ? 0 : block / (blocks / mesh.tensor));
          EXPECT_EQ(s / mesh.tensor % mesh.expert, of_experts < 0 ? 0 : of_experts / (2 / mesh.expert));
          std::vector<uint8_t> marks(static_cast<size_t>(mesh.count));
          mark_shards(unit, {range.begin, range.end}, mesh, marks);
          EXPECT_EQ(std::ranges::count(marks, 1), 1);
          EXPECT_EQ(marks[static_cast<size_t>(s)], 1);
        }
      }
      EXPECT_EQ(elements, expected) << mesh.count << " ranks, tensor " << mesh.tensor << ", expert " << mesh.expert;
    }
  }
}

TEST(SplitCheckpoint, IsReadByAnyMeshOfItsBlocks) {
  const test::ToyFolder folder("llmtrain_split_checkpoint_test");
  int64_t step = 0;
  std::vector<float> buffer(300);
  for (const Sharding& writers : meshes(4)) {
    const std::string path = test::write_layout(folder.path(), schema_with_experts(4), ++step, writers);
    const Manifest manifest = verify_checkpoint(path, test::communicator());
    EXPECT_EQ(manifest.tensor_ranks, writers.tensor);
    EXPECT_EQ(manifest.expert_ranks, writers.expert);
    EXPECT_EQ(manifest.schema, schema_with_experts(4));
    for (const Sharding& readers : meshes(4)) {
      for (int64_t rank = 0; rank < readers.count; ++rank) {
        test::ToyTarget target(schema_with_experts(4, 512), step, rank, readers);
        load_checkpoint(path, manifest, target, buffer, test::communicator());
        EXPECT_EQ(target.right, target.wanted_elements());
        EXPECT_EQ(target.wrong, 0);
      }
    }
  }
}

TEST(SplitCheckpoint, RefusesOtherBlocksByKey) {
  const test::ToyFolder folder("llmtrain_split_checkpoint_refusal_test");
  std::vector<float> buffer(300);
  const std::string path = test::write_layout(folder.path(), schema_of(2), 1, Sharding(2, 2, 2));
  const Manifest manifest = verify_checkpoint(path, test::communicator());
  for (const int64_t blocks : {1, 4}) {
    test::ToyTarget target(schema_of(blocks), 1, 0, Sharding(1, 1, blocks));
    EXPECT_THAT(
        verdict(ExitCode::bad_content, [&] { load_checkpoint(path, manifest, target, buffer, test::communicator()); }),
        HasSubstr("divided into 2 blocks, those of this run into " + std::to_string(blocks) +
                  " (parallel.tensor_blocks)"));
  }
  test::ToyTarget experts(schema_with_experts(2), 1, 0, Sharding(1, 1, 2, 1, 2));
  EXPECT_THAT(
      verdict(ExitCode::bad_content, [&] { load_checkpoint(path, manifest, experts, buffer, test::communicator()); }),
      HasSubstr("its experts are divided into 1 block, those of this run into 2 (parallel.expert)"));
}

/// What whole tensors of the toy state of a step have, by name.
std::map<std::string, std::vector<float>> whole_tensors(const Schema& schema, int64_t step, size_t plane) {
  std::map<std::string, std::vector<float>> tensors;
  for (const TensorSchema& tensor : schema.tensors) {
    const TensorBlock at = tensor.place();
    std::vector<float>& values = tensors[tensor.name];
    values.resize(static_cast<size_t>(at.rows * at.columns));
    each_external_run(at, std::max<int64_t>(tensor.columns, 1), 0, tensor.elements(), [&](const ExternalRun& run) {
      for (int64_t e = run.begin; e < run.end; ++e) {
        values[static_cast<size_t>(run.first + e - run.begin)] =
            test::toy_value(step, plane, tensor.unit, tensor.offset + e);
      }
    });
  }
  return tensors;
}

int64_t different(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return -1;
  int64_t count = 0;
  for (size_t i = 0; i < a.size(); ++i) count += test::same_bits(a[i], b[i]) ? 0 : 1;
  return count;
}

/// Takes whole tensors, as a model without blocks does.
class WholeTarget : public StateTarget {
 public:
  explicit WholeTarget(Schema schema) : schema_(std::move(schema)) {
    for (const UnitSchema& unit : schema_.units) values.emplace_back(static_cast<size_t>(unit.elements));
  }
  Schema schema() const override { return schema_; }
  std::vector<ShardBorders> wanted(int64_t unit) const override {
    const int64_t elements = schema_.units[static_cast<size_t>(unit)].elements, half = elements / 512 * 256;
    return {{0, half}, {half, elements}};
  }
  bool wants(size_t plane) const override { return plane == master_plane; }
  bool may_lack() const override { return true; }
  void write(int64_t unit, size_t /*plane*/, int64_t begin, int64_t count, const void* from) override {
    std::copy_n(static_cast<const float*>(from), count, values[static_cast<size_t>(unit)].begin() + begin);
  }
  void finish() override {}
  std::vector<std::vector<float>> values;  ///< by unit

 private:
  Schema schema_;
};

TEST(SplitCheckpoint, IsReadAsWholeTensors) {
  const test::ToyFolder folder("llmtrain_split_checkpoint_whole_test");
  std::vector<float> buffer(300);
  for (const int64_t blocks : {1, 2, 4}) {
    const std::string path = test::write_layout(folder.path(), schema_of(blocks), blocks, Sharding(4, blocks, blocks));
    const Manifest manifest = verify_checkpoint(path, test::communicator());
    const auto expected = whole_tensors(manifest.schema, blocks, master_plane);
    for (const int64_t other : {1, 2, 4}) {  // a model that is not trained may have other blocks
      const Schema schema = schema_of(other);
      WholeTarget target(schema);
      load_checkpoint(path, manifest, target, buffer, test::communicator());
      for (const TensorSchema& tensor : schema.tensors) {
        const TensorBlock at = tensor.place();
        each_external_run(at, std::max<int64_t>(tensor.columns, 1), 0, tensor.elements(), [&](const ExternalRun& run) {
          const float* found = target.values[static_cast<size_t>(tensor.unit)].data() + tensor.offset + run.begin;
          const float* wanted = expected.at(tensor.name).data() + run.first;
          ASSERT_EQ(std::memcmp(found, wanted, static_cast<size_t>(run.end - run.begin) * sizeof(float)), 0)
              << tensor.name << " of " << blocks << " blocks in " << other;
        });
      }
    }
    // Piece by piece, as an export reads it.
    CheckpointWeights weights(path, manifest);
    const std::vector<UnitSpec> units = SplitModel::units({});
    WholeUnits whole(units, blocks_of_units(manifest.schema),
                     [&](int unit, int64_t begin, int64_t end, float* out) { weights.read(unit, begin, end, out); });
    const std::vector<UnitLayout> layouts = layouts_of(units);
    for_each_slice(units, [&](const SlicePlace& at, const ParamSpec& param, const ParamSlice& slice) {
      const int64_t elements = slice.rows * param.columns;
      std::vector<float> values(static_cast<size_t>(elements));
      for (int64_t begin = 0; begin < elements; begin += 333) {
        const int64_t end = std::min(begin + 333, elements);
        whole.read(at.unit, at.offset(layouts) + begin, at.offset(layouts) + end, values.data() + begin);
      }
      EXPECT_EQ(different(values, expected.at(slice.name)), 0) << slice.name << " of " << blocks << " blocks";
      EXPECT_GT(different(values, whole_tensors(manifest.schema, blocks + 8, master_plane).at(slice.name)), 0);
    });
  }
}

std::vector<float> read_view(const std::string& path, const std::string& name, std::vector<hsize_t>& shape) {
  const Hdf5Handle file(H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), H5Fclose);
  const Hdf5Handle dataset(H5Dopen2(file.get(), name.c_str(), H5P_DEFAULT), H5Dclose);
  EXPECT_TRUE(dataset.valid()) << name;
  const Hdf5Handle space(H5Dget_space(dataset.get()), H5Sclose);
  shape.resize(static_cast<size_t>(H5Sget_simple_extent_ndims(space.get())));
  H5Sget_simple_extent_dims(space.get(), shape.data(), nullptr);
  std::vector<float> values(static_cast<size_t>(H5Sget_simple_extent_npoints(space.get())));
  EXPECT_GE(H5Dread(dataset.get(), H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()), 0);
  return values;
}

TEST(SplitCheckpoint, ItsViewShowsWholeTensors) {
  const test::ToyFolder folder("llmtrain_split_view_test");
  int64_t step = 0;
  for (const auto& [tensor, files] : {std::pair<int64_t, std::vector<int64_t>>{1, {}},
                                      {2, {}},
                                      {4, {}},
                                      {2, {0, 0, 1, 1}},
                                      {4, {0, 0, 0, 0, 1, 1, 1, 1}},
                                      {2, {0, 1, 1, 0}}}) {
    const Schema schema = schema_of(4, 768);
    ++step;
    const std::string path = files.empty() ? test::write_layout(folder.path(), schema, step, Sharding(4, tensor, 4))
                                           : test::write_shared_layout(folder.path(), schema, step, files, tensor);
    EXPECT_EQ(verify_checkpoint(path, test::communicator()).step, step);
    for (size_t plane = 0; plane < schema.states.size(); ++plane) {
      for (const auto& [name, values] : whole_tensors(schema, step, plane)) {
        std::vector<hsize_t> shape;
        const std::vector<float> found =
            read_view(path + "/" + view_name, schema.states[plane].name + "/" + name, shape);
        EXPECT_EQ(different(found, values), 0) << name << ", tensor " << tensor;
        EXPECT_GT(different(found, whole_tensors(schema, step + 1, plane).at(name)), 0);
        EXPECT_EQ(shape.size(), name == "norm" || name == "up.bias" ? 1u : 2u);
      }
    }
  }
}

TEST(SplitCheckpoint, DamagedBlocksAreRefused) {
  const auto problem = [](const auto& change) {
    Schema schema = schema_of(2);
    change(schema);
    try {
      check_schema(schema, "here");
    } catch (const UserError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const auto tensor = [](Schema& schema, const char* name) -> TensorSchema& {
    return *std::ranges::find(schema.tensors, name, &TensorSchema::name);
  };
  EXPECT_EQ(problem([](Schema&) {}), "");
  EXPECT_THAT(problem([&](Schema& s) { tensor(s, "down.weight").block->first_column += 1; }), HasSubstr("overlap"));
  EXPECT_THAT(problem([&](Schema& s) { tensor(s, "down.weight").block->first_row = -1; }),
              HasSubstr("impossible block"));
  EXPECT_THAT(problem([&](Schema& s) { tensor(s, "down.weight").block->rows += 1; }), HasSubstr("impossible block"));
  EXPECT_THAT(problem([&](Schema& s) { tensor(s, "down.weight").block.reset(); }), HasSubstr("is repeated"));
  EXPECT_THAT(problem([&](Schema& s) { tensor(s, "table.weight").transposed = true; }), HasSubstr("impossible block"));
  EXPECT_THAT(problem([&](Schema& s) {
                for (TensorSchema& t : s.tensors) {
                  if (t.name == "table.weight") t.block->rows += 1;
                }
              }),
              HasSubstr("is not whole"));
  EXPECT_THAT(problem([&](Schema& s) { s.units.back().tensor_block = 2; }), HasSubstr("impossible block"));
  EXPECT_THAT(problem([&](Schema& s) { s.tensor_blocks = 1; }), HasSubstr("impossible block"));
  EXPECT_THAT(problem([&](Schema& s) { s.units.back().expert_block = 0; }), HasSubstr("impossible block"));
  // A manifest of ranks that divide neither the shards nor the blocks.
  Manifest manifest;
  manifest.schema = schema_of(2);
  for (int64_t s = 0; s < 2; ++s) manifest.shards.push_back({{shard_name(s, 2), 100, {}}, 0, 10});
  manifest.tensor_ranks = 2;
  EXPECT_EQ(parse_manifest(to_text(manifest), "here"), manifest);
  manifest.tensor_ranks = 3;
  EXPECT_THAT(verdict(ExitCode::bad_content, [&] { parse_manifest(to_text(manifest), "here"); }),
              HasSubstr("do not divide"));
  manifest.schema = schema_with_experts(2);
  manifest.tensor_ranks = manifest.expert_ranks = 2;
  EXPECT_THAT(verdict(ExitCode::bad_content, [&] { parse_manifest(to_text(manifest), "here"); }),
              HasSubstr("do not divide"))
      << "two shards of four ranks";
}

}  // namespace
}  // namespace llmtrain
