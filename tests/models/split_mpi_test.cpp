// Decoders whose blocks of matrices several ranks share (parallel.tensor): the bits of one rank that has all blocks.

#include <gtest/gtest.h>

#include "harness/harness.hpp"
#include "models/split_models.hpp"
#include "parallel/local_communicator.hpp"

namespace llmtrain::test {
namespace {

constexpr int64_t blocks = 4;

struct Outcome {
  double loss;
  std::vector<float> logits;
  Parameters gradients;
};

class SplitRanks : public ::testing::Test {
 protected:
  void SetUp() override {
    if (blocks % communicator().size() != 0) GTEST_SKIP() << "the ranks do not divide the blocks";
  }

  static TensorShare own_share() {
    const int64_t count = blocks / communicator().size();
    return {blocks, communicator().rank() * count, count};
  }

  /// With dropout everywhere. `values`: whole parameters.
  static Outcome outcome(DecoderShape shape, const TensorShare& share, DType compute, const Parameters& values,
                         const Rows& rows) {
    shape.tensor = share;
    shape.config.dropout = shape.config.attention_dropout = 0.1;
    Ranks ranks{&this_process()};
    if (share.count < share.blocks) ranks.tensor = &communicator();
    TestModel m(shape, compute, static_cast<int64_t>(rows.ids.size()), Recompute::attention, ranks);
    m.set(values);
    Outcome result{};
    result.logits = m.logits(rows);
    m.context().training = true;
    result.loss = m.differentiate({rows});
    result.gradients = m.gradients();
    return result;
  }

  /// This rank's elements have the values of all; `shape` has the share.
  static void expect_own_elements(const DecoderShape& shape, const Parameters& own, const Parameters& all) {
    for (const UnitSpec& unit : Decoder(shape).units()) {
      for (const ParamSpec& param : unit.params) {
        for (const ParamSlice& slice : param.slices) {
          if (!unit.trained) continue;
          const TensorBlock place = slice.block.value_or(TensorBlock{0, 0, slice.rows, param.columns});
          for (int64_t row = 0; row < slice.rows; ++row) {
            const int64_t at = (place.first_row + row) * place.columns + place.first_column;
            const auto a = own.at(slice.name).begin() + at, b = all.at(slice.name).begin() + at;
            ASSERT_TRUE(std::equal(a, a + param.columns, b)) << slice.name << " row " << row;
          }
        }
      }
    }
  }

  static void expect_same_bits(DecoderShape shape, const Parameters& values, const Rows& rows) {
    for (const DType compute : {DType::f32, DType::bf16}) {
      const Outcome all = outcome(shape, {blocks, 0, blocks}, compute, values, rows);
      const Outcome own = outcome(shape, own_share(), compute, values, rows);
      EXPECT_EQ(own.loss, all.loss);
      EXPECT_EQ(own.logits, all.logits);
      shape.tensor = own_share();
      expect_own_elements(shape, own.gradients, all.gradients);
      if (compute != DType::f32) continue;  // 16 bits may hide it
      const Outcome other = outcome(shape, {blocks / 2, 0, blocks / 2}, compute, values, rows);
      EXPECT_NE(other.gradients, all.gradients) << "control: other blocks have other bits";
    }
  }
};

TEST_F(SplitRanks, HaveTheBitsOfOne) {
  for (const ModelConfig::Family family : all_families) {
    SCOPED_TRACE(name_of(family));
    const DecoderShape shape = splittable_shape(family);
    expect_same_bits(shape, random_values(shape), random_rows(shape.tokens));
  }
}

TEST_F(SplitRanks, HaveTheBitsOfOneWithAdapters) {
  for (const ModelConfig::Family family : {ModelConfig::Family::gpt2, ModelConfig::Family::phi3}) {
    SCOPED_TRACE(name_of(family));
    for (const bool dora : {false, true}) {
      for (const double dropout : {0.0, 0.2}) {
        DecoderShape shape = splittable_shape(family);
        AdapterShape adapter{.rank = 3};
        adapter.dora = dora;
        adapter.dropout = dropout;
        adapt_all(shape, adapter);
        expect_same_bits(shape, random_values(shape), random_rows(shape.tokens));
      }
    }
  }
}

TEST_F(SplitRanks, HaveTheBitsOfOneInPhases) {
  for (DecoderShape shape : shapes_in_phases()) {
    SCOPED_TRACE(testing::Message() << name_of(shape.config.family) << ' ' << shape.config.latent.query_rank);
    expect_same_bits(shape, random_values(shape), random_rows(shape.tokens));
    adapt_all(shape, {.rank = 3, .dropout = 0.2});
    expect_same_bits(shape, random_values(shape), random_rows(shape.tokens));
  }
}

}  // namespace
}  // namespace llmtrain::test
