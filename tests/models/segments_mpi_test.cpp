// Two steps of models whose units are divided into segments have the bits of one rank with whole units, for all ranks
// and stages of ZeRO: gradients of matrices are then computed in blocks of rows, and exchanged during the backward
// pass. On a GPU they have the bits of one rank with the same segments.

#include <gtest/gtest.h>

#include "harness/gradient_norm.hpp"
#include "harness/harness.hpp"
#include "kernels/step_decision.hpp"
#include "models/test_model.hpp"
#include "optim/optimizer.hpp"
#include "parallel/local_communicator.hpp"

namespace llmtrain::test {
namespace {

struct Trained {
  std::vector<double> numbers;  ///< losses and norms
  std::map<std::string, std::vector<float>> parameters;
  size_t most_segments = 0;  ///< of a unit
  bool same_bits(const Trained& other) const { return numbers == other.numbers && parameters == other.parameters; }
};

class SegmentsOfModels : public ::testing::TestWithParam<std::string> {
 protected:
  Trained train(DType compute, const Ranks& ranks, bool other = false) const {
    TestModel m(shape_of(golden_), compute, static_cast<int64_t>(rows_.ids.size()), Recompute::none, ranks);
    std::map<std::string, std::vector<float>> parameters;
    for (const std::string& name : golden_.names("params")) parameters[name] = golden_.floats("params/" + name).values;
    m.set(parameters);
    const auto optimizer = make_optimizer({.weight_decay = 0.1});
    Trained result;
    for (int t = 1; t <= 2; ++t) {
      result.numbers.push_back(m.differentiate({rows_, document_of(rows_, 0), other ? document_of(rows_, 0) : rows_}));
      const double norm = gradient_norm(m.params(), *ranks.communicator);
      result.numbers.push_back(norm);
      optimizer->update(m.params(), {t, 1e-2, clip_factor(norm, 1.0)}, stream());
    }
    result.parameters = m.parameters();
    for (int u = 0; u < m.params().units().size(); ++u) {
      result.most_segments = std::max(result.most_segments, m.params().units()[u].segments.size());
    }
    return result;
  }

  Golden golden_{GetParam()};
  Rows rows_ = rows_of(golden_);
};

TEST_P(SegmentsOfModels, ChangeNoBit) {
  // The library of a GPU may sum a block of rows in another order than the whole.
  const int64_t whole = device_memory_is_host() ? default_segment_elements : 1024;
  const auto alone = make_local_communicator();
  for (const DType compute : {DType::f32, DType::bf16}) {
    const Trained expected = train(compute, {alone.get(), 0, whole});
    EXPECT_EQ(expected.most_segments == 1, device_memory_is_host());
    for (int stage = 0; stage <= 3; ++stage) {
      const Trained divided = train(compute, {&communicator(), stage, 1024});
      EXPECT_GT(divided.most_segments, 4u);
      EXPECT_TRUE(divided.same_bits(expected)) << "stage " << stage << ", " << name_of(compute);
    }
    EXPECT_FALSE(train(compute, {&communicator(), 2, 1024}, true).same_bits(expected)) << "control: another batch";
  }
}

// Biases and a tied head; a gated one without biases; norms on both sides of the branches; experts,
// and shared ones, whose gradients come before those of attention, which follows them in the unit.
INSTANTIATE_TEST_SUITE_P(Cases, SegmentsOfModels, ::testing::Values("gpt2", "llama", "gemma2", "qwen2_moe"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace llmtrain::test
