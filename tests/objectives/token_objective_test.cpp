// Cotangents of an objective over tokens, times the scale, and its sums arrive on the device as the host computed them.

#include "objectives/token_objective.hpp"

#include <gtest/gtest.h>

#include "core/exact_sum.hpp"
#include "kernels/kernel_test.hpp"

namespace llmtrain {
namespace {

using test::Array;
using test::Values;

std::vector<float> as_floats(const Values& values) { return {values.begin(), values.end()}; }

/// Two completions behind their prompts, and padding.
class TokenObjectiveOfABatch : public testing::Test {
 protected:
  static constexpr int64_t rows = 9;

  TokenObjectiveOfABatch() {
    rollout.old_logp = as_floats(test::random_values(rows, 4));
    rollout.advantages = as_floats(test::random_values(rows, 5));
    rollout.returns = as_floats(test::random_values(rows, 6));
    rollout.old_values = as_floats(test::random_values(rows, 7));
    batch.tokens = rows;
    batch.segment_count = 3;
    batch.loss_weights = mask;
    batch.segments = segments;
    batch.rollout = &rollout;
    statistics.logp = logp;
    statistics.entropy = entropy;
    statistics.value = value;
    config.entropy_coefficient = 0.125;
    config.clip = config.value_clip = 9;  // nothing is clipped
    objective = make_ppo(config);
    objective->plan(arena, rows, 3);
    memory = DeviceBuffer(arena.bytes());
    arena.commit(memory.data());
  }

  const Values weights = {0, 1, 1, 0, 0, 1, 1, 1, 0};
  const Array mask{DType::f32, {rows}, weights};
  const Array segments{DType::i32, {4}, {0, 3, 8, 9}};
  const Array logp{DType::f32, {rows}, test::random_values(rows, 1)};
  const Array value{DType::f32, {rows}, test::random_values(rows, 2)};
  const Array entropy{DType::f32, {rows}, test::random_values(rows, 3)};
  RolloutColumns rollout;
  Batch batch;
  TokenStatistics statistics;
  PpoConfig config;
  std::unique_ptr<Objective> objective;
  Arena arena;
  DeviceBuffer memory;
};

TEST_F(TokenObjectiveOfABatch, FillsCotangentsTimesTheScale) {
  const Array dlogp(DType::f32, {rows}), dentropy(DType::f32, {rows}), dvalue(DType::f32, {rows});
  const TokenCotangents out{dlogp, {}, dentropy, dvalue};
  objective->cotangents(batch, statistics, out, {}, test::stream());
  const Values plain = dlogp.values(), plain_value = dvalue.values(), of_entropy = dentropy.values();
  objective->cotangents(batch, statistics, out, Array(DType::f32, {1}, {1024}), test::stream());
  const Values scaled = dlogp.values(), scaled_value = dvalue.values();
  for (size_t row = 0; row < rows; ++row) {
    EXPECT_EQ(scaled[row], 1024 * plain[row]);
    EXPECT_EQ(scaled_value[row], 1024 * plain_value[row]);
    EXPECT_EQ(of_entropy[row], weights[row] * -0.125);
    EXPECT_EQ(weights[row] > 0, plain_value[row] != 0 || plain[row] != 0) << "row " << row;
  }
  batch.rollout = nullptr;
  EXPECT_THROW(objective->cotangents(batch, statistics, out, {}, test::stream()), Error) << "no rollout";
}

TEST_F(TokenObjectiveOfABatch, AddsItsValuesToTheSums) {
  const std::vector<float> x = as_floats(logp.values()), h = as_floats(entropy.values()), v = as_floats(value.values()),
                           w = as_floats(weights);
  const std::vector<int32_t> borders = {0, 3, 8, 9};
  const TokenColumns columns{x, h, v, w, borders, &rollout};
  const auto& tokens = dynamic_cast<const TokenObjective&>(*objective);
  TokenResults results;
  tokens.start_results(columns, results);
  tokens.evaluate(columns, results);

  const int64_t metrics = std::ssize(objective->metrics());
  const DeviceBuffer integers(metrics * ExactSum::integer_count * static_cast<int64_t>(sizeof(int64_t)));
  const Tensor sums(integers.data(), DType::i64, {metrics, ExactSum::integer_count});
  fill_zero(sums.data, sums.bytes(), test::stream());
  objective->add_sums(batch, statistics, sums, test::stream());
  for (int64_t m = 0; m < metrics; ++m) {
    ExactSum found, expected;
    copy_to_host(found.limbs().data(), sums.rows(m, 1).data, static_cast<int64_t>(found.limbs().size_bytes()),
                 test::stream());
    test::stream().synchronize();
    for (const float one : results.values[static_cast<size_t>(m)]) expected.add(static_cast<double>(one));
    EXPECT_EQ(found.value(), expected.value()) << objective->metrics()[static_cast<size_t>(m)].name;
    EXPECT_EQ(results.values[static_cast<size_t>(m)].size(), 5) << "trained tokens";
  }
}

}  // namespace
}  // namespace llmtrain
