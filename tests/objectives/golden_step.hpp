#pragma once
// One batch of logits of tests/reference/objectives/terms.json through an objective, as a step runs it: statistics,
// derivatives, and the gradient with respect to the logits.

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/exact_sum.hpp"
#include "kernels/kernel_test.hpp"
#include "objectives/objective.hpp"

namespace llmtrain::test {

class GoldenStep {
 public:
  explicit GoldenStep(std::unique_ptr<Objective> of_step) : objective(std::move(of_step)) {
    batch.tokens = rows;
    batch.targets = targets_;
    batch.loss_weights = weights_;
    objective->plan(arena_, rows, 1);
    if (arena_.bytes() > 0) {
      memory_ = DeviceBuffer(arena_.bytes());
      arena_.commit(memory_.data());
    }
    const ObjectiveNeeds needs = objective->needs();
    const TokenStatistics statistics{logp_, lse_, needs.entropy ? entropy_ : Tensor(),
                                     {},    {},   needs.uniform ? uniform_ : Tensor()};
    const TokenCotangents cotangents{dlogp_,
                                     {},
                                     needs.entropy ? dentropy_ : Tensor(),
                                     {},
                                     needs.uniform ? duniform_ : Tensor(),
                                     needs.lse_squared ? dsquared_ : Tensor()};
    const auto metrics = static_cast<int64_t>(objective->metrics().size());
    const Array sums(DType::i64, {metrics, ExactSum::integer_count}), scale(DType::f32, {1}, {1.0 / counted});
    const auto score = [&] { logprob_forward(statistics, logits_, targets_, vocabulary, stream()); };
    if (needs.statistics_first) {
      score();
      objective->cotangents_and_sums(batch, statistics, cotangents, scale, sums, stream());
    } else {
      objective->cotangents(batch, statistics, cotangents, scale, stream());
      score();
      objective->add_sums(batch, statistics, sums, stream());
    }
    logprob_backward(gradient, logits_, targets_, statistics, cotangents, vocabulary, 0, stream());
    for (int64_t m = 0; m < metrics; ++m) {
      ExactSum sum;
      copy_to_host(sum.limbs().data(), sums.tensor().rows(m, 1).data, static_cast<int64_t>(sum.limbs().size_bytes()),
                   stream());
      stream().synchronize();
      totals.push_back(sum.value());
    }
  }
  double value(size_t metric) const { return metric_value(objective->metrics(), totals, metric, counted); }
  static const nlohmann::json& golden() {
    static const auto file = nlohmann::json::parse(std::ifstream("tests/reference/objectives/terms.json"));
    return file;
  }

  static constexpr int64_t rows = 6, vocabulary = 11, counted = 5;
  std::unique_ptr<Objective> objective;
  Batch batch;
  Array gradient{DType::f32, {rows, vocabulary}};
  std::vector<double> totals;

 private:
  static Values weights() {
    Values weights;
    for (const int target : golden()["targets"].get<std::vector<int>>()) weights.push_back(target >= 0 ? 1 : 0);
    return weights;
  }
  const Array logits_{DType::f32, {rows, vocabulary}, golden()["logits"].get<Values>()};
  const Array targets_{DType::i32, {rows}, golden()["targets"].get<Values>()};
  const Array weights_{DType::f32, {rows}, weights()};
  const Array logp_{DType::f32, {rows}}, lse_{DType::f32, {rows}}, entropy_{DType::f32, {rows}},
      uniform_{DType::f32, {rows}}, dlogp_{DType::f32, {rows}}, dentropy_{DType::f32, {rows}},
      duniform_{DType::f32, {rows}}, dsquared_{DType::f32, {rows}};
  Arena arena_;
  DeviceBuffer memory_;
};

inline double largest_difference(const Values& found, const Values& expected) {
  double largest = 0;
  for (size_t i = 0; i < expected.size(); ++i) largest = std::max(largest, std::abs(found[i] - expected[i]));
  return largest;
}

}  // namespace llmtrain::test
