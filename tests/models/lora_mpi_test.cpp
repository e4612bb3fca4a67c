// Two steps of training adapters, with dropout, have the bits of one rank for all ranks, stages of ZeRO and levels of
// recomputation.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "harness/gradient_norm.hpp"
#include "harness/harness.hpp"
#include "kernels/step_decision.hpp"
#include "models/lora_golden.hpp"
#include "optim/optimizer.hpp"
#include "parallel/local_communicator.hpp"

namespace llmtrain::test {
namespace {

struct Trained {
  std::vector<double> numbers;  ///< losses and norms
  Parameters parameters;
  bool operator==(const Trained&) const = default;
};

class AdaptersOfRanks : public ::testing::TestWithParam<const char*>, protected AdaptedModel {
 protected:
  AdaptersOfRanks() : AdaptedModel(GetParam()) { adapter.dropout = 0.125; }

  Trained train(DType compute, Recompute recompute, Communicator& ranks, int zero_stage, uint64_t seed = 42) const {
    const int64_t segment_elements = zero_stage % 2 == 0 ? default_segment_elements : 1024;
    TestModel m = model(compute, recompute, {&ranks, zero_stage, segment_elements});
    m.set(parameters());
    m.context().training = true;
    m.context().seed = seed;
    const auto optimizer = make_optimizer({.weight_decay = 0.1});
    Trained result;
    for (int t = 1; t <= 2; ++t) {
      m.context().step = t;
      result.numbers.push_back(m.differentiate({rows, document_of(rows, 0), rows}));
      const double norm = gradient_norm(m.params(), ranks);
      result.numbers.push_back(norm);
      optimizer->update(m.params(), {t, 1e-2, clip_factor(norm, 1.0)}, stream());
    }
    result.parameters = m.parameters();
    return result;
  }
};

TEST_P(AdaptersOfRanks, StepsHaveTheBitsOfOneRank) {
  const auto alone = make_local_communicator();
  for (const DType compute : {DType::f32, DType::bf16}) {
    const Trained expected = train(compute, Recompute::none, *alone, 0);
    EXPECT_NE(expected.parameters, parameters());
    constexpr std::array levels = {Recompute::block, Recompute::activation, Recompute::attention, Recompute::none};
    for (int stage = 0; stage <= 3; ++stage) {
      const Recompute level = levels[static_cast<size_t>(stage)];
      EXPECT_EQ(train(compute, level, communicator(), stage), expected) << "stage " << stage << ", " << name_of(level);
    }
    EXPECT_NE(train(compute, Recompute::none, communicator(), 1, 43), expected) << "control: other masks";
  }
}

TEST_P(AdaptersOfRanks, StepsOverAQuantizedBaseHaveTheBitsOfOneRank) {
  const auto alone = make_local_communicator();
  const auto use = [&](const Quantization& format) {
    shape.quantization = [this, format](const std::string& name) -> std::optional<Quantization> {
      return shape.has_row_per_token(name) ? std::nullopt : std::optional(format);
    };
  };
  const std::vector<Quantization> formats = {
      {QuantizedType::nf4, 64, true, 0}, {QuantizedType::fp4, 128, false, 0}, {QuantizedType::int8, 256, false, 0}};
  for (size_t i = 0; i < formats.size(); ++i) {
    const DType compute = i == 1 ? DType::f32 : DType::bf16;
    use(formats[(i + 1) % formats.size()]);
    const Trained other = train(compute, Recompute::none, *alone, 0);
    use(formats[i]);
    const Trained expected = train(compute, Recompute::none, *alone, 0);
    EXPECT_NE(other.numbers, expected.numbers) << "control: another storage";
    for (int stage = 0; stage <= 3; ++stage) {
      const Recompute level = stage % 2 == 0 ? Recompute::block : Recompute::none;
      EXPECT_EQ(train(compute, level, communicator(), stage), expected) << "stage " << stage << ", storage " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, AdaptersOfRanks,
                         ::testing::Values("qv", "gpt2_dora", "part_of_fused", "head", "tables", "head_dora",
                                           "tied_tables", "tied_apart"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace llmtrain::test
