// HDF5 puts datasets below its alignment into free space, not in order: nothing may depend on their order.

#include <gtest/gtest.h>

#include <algorithm>

#include "checkpoint/checkpoint_weights.hpp"
#include "checkpoint/toy_state.hpp"
#include "parallel/local_communicator.hpp"

namespace llmtrain {
namespace {

/// Units smaller and larger than the alignment of 4096 bytes, alternating; the first one is longer than a piece of the
/// read-back (1 MiB).
std::vector<UnitSpec> mixed_specs(int64_t large, int64_t small) {
  const auto unit = [](const std::string& name, int64_t rows) {
    return UnitSpec{name, {ParamSpec{name, rows, 8, true, Initializer::zeros(), {{name + ".weight", 0, rows}}}}};
  };
  return {unit("first", 50'000), unit("a", small), unit("b", large),
          unit("c", small),      unit("d", small), unit("e", large)};
}

/// Returns true if consecutive ranges of the index are consecutive in the file.
bool in_order(const std::string& path, const Manifest& manifest) {
  bool ordered = true;
  for (size_t s = 0; s < manifest.shards.size(); ++s) {
    const FileHandle file = FileHandle::open_to_read(path + "/" + manifest.shards[s].file.name);
    const ShardIndex index = read_shard_index(file, manifest, static_cast<int64_t>(s));
    ordered =
        ordered && std::ranges::is_sorted(index.entries, {}, [](const IndexEntry& entry) { return entry.offset; });
  }
  return ordered;
}

TEST(LayoutOrder, SmallTensorsLieWhereThereIsRoom) {
  const test::ToyFolder folder("llmtrain_layout_order_test");
  const auto communicator = make_local_communicator();
  int64_t step = 0, out_of_order = 0;
  for (const int64_t small : {32, 64, 96}) {
    for (const int64_t shards : {1, 2, 3}) {
      const Schema schema = make_schema(mixed_specs(400, small));
      ++step;
      const std::string path = test::write_layout(folder.path(), schema, step, shards);
      const Manifest manifest = verify_checkpoint(path, *communicator);
      out_of_order += in_order(path, manifest) ? 0 : 1;
      for (const int64_t of : {step, step + 1}) {  // the control: another step's values
        test::ToyTarget target(schema, of, 0, 1);
        std::vector<float> buffer(777);
        load_checkpoint(path, manifest, target, buffer, *communicator);
        EXPECT_EQ(target.right + target.wrong, target.wanted_elements());
        EXPECT_EQ(target.wrong == 0, of == step) << small << ", " << shards << " shards";
      }
    }
  }
  EXPECT_GT(out_of_order, 0) << "HDF5 now keeps the order: other sizes are needed to put it out";
}

TEST(LayoutOrder, AnyRangeOfWeightsIsReadFromAnyShards) {
  const test::ToyFolder folder("llmtrain_layout_order_test");
  const auto communicator = make_local_communicator();
  const Schema schema = make_schema(mixed_specs(400, 64));
  for (const int64_t shards : {1, 3, 5}) {
    const std::string path = test::write_layout(folder.path(), schema, shards, shards);
    CheckpointWeights weights(path, verify_checkpoint(path, *communicator));
    for (int64_t unit = 0; unit < 6; ++unit) {
      const int64_t elements = schema.units[static_cast<size_t>(unit)].elements;
      for (const auto& [begin, end] :
           {std::pair<int64_t, int64_t>{0, elements}, {1, 2}, {elements / 3, elements - 1}}) {
        std::vector<float> values(static_cast<size_t>(end - begin));
        weights.read(unit, begin, end, values.data());
        int64_t wrong = 0;
        for (int64_t i = begin; i < end; ++i) {
          const float wanted = test::toy_value(shards, master_plane, unit, i);
          wrong += test::same_bits(values[static_cast<size_t>(i - begin)], wanted) ? 0 : 1;
        }
        EXPECT_EQ(wrong, 0) << "unit " << unit << ", " << shards << " shards";
      }
    }
    float beyond = 0;
    EXPECT_THROW(weights.read(5, schema.units[5].elements, schema.units[5].elements + 1, &beyond), Error) << "control";
  }
}

}  // namespace
}  // namespace llmtrain
