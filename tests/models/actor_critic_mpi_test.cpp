// A policy and its critic, trained as one model, have the gradients that they have apart, and the bits of one rank for
// all ranks, stages of ZeRO, levels of recomputation and places of the state, on one trunk as well.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/critic_names.hpp"
#include "harness/gradient_norm.hpp"
#include "harness/harness.hpp"
#include "kernels/step_decision.hpp"
#include "models/actor_critic.hpp"
#include "models/test_model.hpp"
#include "optim/optimizer.hpp"
#include "parallel/local_communicator.hpp"

namespace llmtrain::test {
namespace {

using Parameters = std::map<std::string, std::vector<float>>;

/// A critic of other sizes than its policy's.
class ActorCritics : public ::testing::TestWithParam<const char*> {
 protected:
  ActorCritics() : golden(GetParam()), rows(rows_of(golden)), policy(shape_of(golden)), critic(policy) {
    critic.config.head = ModelConfig::Head::score;
    critic.config.n_layers = 1;
  }

  TestModel model(const TestCritic& of, DType compute, const Ranks& ranks,
                  Recompute recompute = Recompute::none) const {
    return {policy, compute, std::ssize(rows.ids), recompute, ranks, of};
  }

  Golden golden;
  Rows rows;
  DecoderShape policy, critic;
};

/// The parameters of a policy and those of its critic.
Parameters joined(Parameters policy, const Parameters& critic) {
  for (const auto& [name, values] : critic) policy[std::string(critic_prefix) + name] = values;
  return policy;
}

TEST_P(ActorCritics, GradientsAreThoseOfTheModelsApart) {
  const auto alone = make_local_communicator();
  const Ranks ranks{alone.get()};
  const int64_t count = std::ssize(rows.ids);
  TestModel actor(policy, DType::f32, count, Recompute::none, ranks),
      other(critic, DType::f32, count, Recompute::none, ranks);
  TestModel both = model({critic}, DType::f32, ranks);
  both.set(joined(actor.parameters(), other.parameters()));
  const std::vector<Rows> batches = {rows, document_of(rows, 0)};
  const double loss = actor.differentiate(batches), value = other.differentiate(batches);
  EXPECT_DOUBLE_EQ(both.differentiate(batches), loss + value);
  const Parameters apart = joined(actor.gradients(), other.gradients());
  EXPECT_EQ(both.gradients(), apart);
  both.differentiate({rows, document_of(rows, 1)});
  EXPECT_NE(both.gradients(), apart) << "the control";
}

struct Trained {
  std::vector<double> numbers;  ///< losses and norms
  Parameters parameters;
  bool operator==(const Trained&) const = default;
};

Trained train(TestModel m, const std::vector<Rows>& batches, Communicator& ranks) {
  m.context().training = true;
  const auto optimizer = make_optimizer({.weight_decay = 0.1});
  Trained result;
  for (int t = 1; t <= 2; ++t) {
    m.context().step = t;
    result.numbers.push_back(m.differentiate(batches));
    const double norm = gradient_norm(m.params(), ranks);
    result.numbers.push_back(norm);
    optimizer->update(m.params(), {t, 1e-2, clip_factor(norm, 1.0)}, stream());
  }
  result.parameters = m.parameters();
  return result;
}

/// Segments of units and the stages between are the store's (segments_mpi_test): it does not know what a critic is.
TEST_P(ActorCritics, StepsHaveTheBitsOfOneRank) {
  const auto alone = make_local_communicator();
  const std::vector<Rows> batches = {rows, document_of(rows, 0)}, fewer = {rows};
  const auto of_one_rank = [&](const TestCritic& of, DType compute, const std::vector<Rows>& given) {
    return train(model(of, compute, {alone.get(), 0}), given, *alone);
  };
  const auto of_all = [&](const TestCritic& of, DType compute, int stage, Offload place) {
    const Ranks ranks{&communicator(), stage, default_segment_elements, place};
    return train(model(of, compute, ranks, Recompute::block), batches, communicator());
  };
  const TestCritic separate{critic}, shared{};
  const Trained expected = of_one_rank(separate, DType::f32, batches);
  EXPECT_NE(expected.parameters, model(separate, DType::f32, {alone.get(), 0}).parameters());
  EXPECT_EQ(of_all(separate, DType::f32, 1, Offload::none), expected);
  EXPECT_NE(of_one_rank(separate, DType::f32, fewer).parameters, expected.parameters) << "the control";
  EXPECT_EQ(of_all(separate, DType::bf16, 3, Offload::nvme), of_one_rank(separate, DType::bf16, batches));
  EXPECT_EQ(of_all(shared, DType::bf16, 3, Offload::none), of_one_rank(shared, DType::bf16, batches)) << "one trunk";
}

INSTANTIATE_TEST_SUITE_P(Models, ActorCritics, ::testing::Values("gpt2_packed", "llama_packed", "gemma2_packed"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace llmtrain::test
