// A policy and a critic on one trunk, whose gradients are those of the sum of both losses.

#include "models/actor_critic.hpp"

#include <gtest/gtest.h>

#include "core/critic_names.hpp"
#include "models/finite_differences.hpp"
#include "models/lora.hpp"
#include "models/test_model.hpp"
#include "parallel/local_communicator.hpp"

namespace llmtrain::test {
namespace {

/// The initial parameters plus noise: an adapter begins as zeros.
Parameters random_parameters(TestModel& m) {
  std::mt19937_64 generator(5);
  std::normal_distribution<float> normal(0, 0.05F);
  Parameters point = m.parameters();
  for (auto& [name, values] : point) {
    for (float& value : values) value += normal(generator);
  }
  return point;
}

TEST(SharedActorCritic, GradientsAreThoseOfBothLosses) {
  const auto alone = make_local_communicator();
  const Golden golden("llama_packed");
  const std::vector<Rows> batches = {document_of(rows_of(golden), 0)};
  const int64_t count = std::ssize(batches.front().ids);
  DecoderShape adapted = shape_of(golden);
  adapt(adapted, LoraConfig{});
  for (const DecoderShape& shape : {shape_of(golden), adapted}) {
    TestModel m(shape, DType::f32, count, Recompute::none, {alone.get()}, TestCritic{});
    const Parameters point = random_parameters(m);
    m.set(point);
    m.differentiate(batches);
    const Parameters both = m.gradients();
    const auto error = [&](double factor) {
      return largest_slope_error(point, both, factor, [&](const Parameters& moved) {
        m.set(moved);
        return m.differentiate(batches);
      });
    };
    EXPECT_LT(error(1), 2e-3) << (shape.adapters ? "LoRA" : "full");
    EXPECT_GT(error(1.02), 4e-3) << "the control";
    TestModel actor(shape, DType::f32, count, Recompute::none, {alone.get()});
    Parameters of_actor = point;
    std::erase_if(of_actor, [](const auto& one) { return one.first.starts_with(critic_prefix); });
    actor.set(of_actor);
    actor.differentiate(batches);
    const Parameters own = actor.gradients();
    ASSERT_EQ(both.size(), own.size() + 1);
    for (const auto& [name, values] : own) {
      EXPECT_EQ(values == both.at(name), name == "lm_head.weight") << name << " has a gradient of the values, too";
    }
  }
}

}  // namespace
}  // namespace llmtrain::test
