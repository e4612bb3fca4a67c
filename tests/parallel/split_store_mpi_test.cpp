// Stores of split matrices: what they hold is the same model, whatever the blocks.

#include <gtest/gtest.h>

#include "harness/split_model.hpp"
#include "params/planned_memory.hpp"

namespace llmtrain {
namespace {

using test::communicator;
using test::SplitModel;
using test::stream;

struct Started {
  explicit Started(std::vector<UnitSpec> units, const test::StoreLayout& layout = {})
      : store(std::move(units), test::store_options(communicator(), layout, 1, master_and_moments())) {
    store.plan(arena);
    memory.emplace(arena, communicator());
    store.start(communicator(), stream());
    store.initialize(7);
  }
  ParamStore store;
  Arena arena;
  std::optional<PlannedMemory> memory;
};

TEST(SplitStore, HasTheSameInitialValuesForAnyBlocks) {
  Started whole(SplitModel::units({}));
  const auto expected = test::external_tensors(whole.store);
  for (const int64_t blocks : {1, 2, 4}) {
    for (const test::StoreLayout& layout : {test::StoreLayout{},
                                            {.stage = 3, .compute = DType::bf16},
                                            {.stage = 2, .optimizer = Offload::nvme, .segment_elements = 512}}) {
      Started split(SplitModel::units({blocks, 0, blocks}), layout);
      EXPECT_EQ(test::external_tensors(split.store), expected) << blocks << " blocks, stage " << layout.stage;
    }
  }
  std::vector<UnitSpec> misplaced = SplitModel::units({2, 0, 2});
  misplaced.back().params.front().slices.front().block->first_row -= 1;  // the last row stays zero
  Started control(std::move(misplaced));
  EXPECT_NE(test::external_tensors(control.store), expected);
}

/// Frozen matrices in fewer bits: those of each block are quantised on their own.
TEST(SplitStore, QuantisesTheInitialValuesOfItsBlocks) {
  Started whole(SplitModel::units({}));
  const auto expected = test::external_tensors(whole.store);
  for (const Quantization& format : {Quantization{QuantizedType::nf4, 64, false}, {QuantizedType::int8}}) {
    std::vector<UnitSpec> units = frozen(SplitModel::units({2, 0, 2}));
    for (UnitSpec& unit : units) {
      if (unit.tensor_block < 0) continue;
      std::erase_if(unit.params, [](const ParamSpec& param) { return !param.decay; });
      unit.quantization = format;
    }
    Started split(units), given(units);
    for (int u = 0; u < given.store.units().size(); ++u) {
      const UnitSpec& unit = units[static_cast<size_t>(u)];
      for (size_t p = 0; p < unit.params.size() && unit.quantization; ++p) {
        const ParamSpec& param = unit.params[p];
        std::vector<float> values(static_cast<size_t>(param.numel()));
        for (const ParamSlice& slice : param.slices) {
          each_external_run(block_of(param, slice), param.columns, 0, slice.rows * param.columns,
                            [&](const ExternalRun& run) {
                              const float* from = expected.at(slice.name).data() + run.first;
                              std::copy(from, from + (run.end - run.begin),
                                        values.data() + slice.first_row * param.columns + run.begin);
                            });
        }
        test::set_parameter(given.store, u, static_cast<int>(p), values.data());
      }
    }
    given.store.publish_weights();
    const auto found = test::external_tensors(split.store);
    EXPECT_EQ(found, test::external_tensors(given.store));
    EXPECT_NE(found, expected);  // they are rounded
  }
}

}  // namespace
}  // namespace llmtrain
