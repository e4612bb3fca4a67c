// Losses over documents, one of each kind: their gradients through a whole model are finite differences, tensor by
// tensor.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "harness/harness.hpp"
#include "models/finite_differences.hpp"
#include "models/test_model.hpp"
#include "objectives/objective.hpp"
#include "parallel/local_communicator.hpp"

namespace llmtrain::test {
namespace {

/// Two pairs of documents, or four documents with a label: some tokens behind a prompt of two.
struct Documents {
  explicit Documents(int64_t vocabulary, bool scores) {
    std::mt19937_64 generator(3);
    rows.segments.push_back(0);
    for (const int32_t length : {7, 5, 4, 9}) {
      for (int32_t t = 0; t < length; ++t) {
        const auto draw = [&] { return static_cast<int32_t>(generator() % static_cast<uint64_t>(vocabulary)); };
        rows.ids.push_back(draw());
        rows.positions.push_back(t);
        const int32_t target = draw();
        const bool trained = scores ? t + 1 == length : t >= 2;
        rows.targets.push_back(trained ? target : ignore_target);
      }
      rows.segments.push_back(rows.segments.back() + length);
      columns.targets.push_back(scores ? 1 : length - 2);
      columns.ids.push_back(std::ssize(columns.ids));
    }
  }
  Rows rows;
  DocumentColumns columns;
};

/// A model and an objective, as a function of the parameters.
class DocumentLoss {
 public:
  DocumentLoss(const DecoderShape& shape, std::unique_ptr<Objective> objective, Documents documents)
      : documents_(std::move(documents)),
        objective_(std::move(objective)),
        communicator_(make_local_communicator()),
        model_(shape, DType::f32, std::ssize(documents_.rows.ids), Recompute::none, {communicator_.get()}) {
    const int64_t rows = std::ssize(documents_.rows.ids), segments = std::ssize(documents_.columns.ids);
    objective_->plan(arena_, rows, segments);
    arena_.add(sums_, MemoryCategory::activations, "sums", DType::i64,
               {std::ssize(objective_->metrics()), ExactSum::integer_count});
    memory_ = DeviceBuffer(arena_.bytes());
    arena_.commit(memory_.data());
  }

  Parameters parameters() { return model_.parameters(); }
  double loss(const Parameters& at) {
    model_.set(at);
    return model_.evaluate(documents_.rows, documents_.columns, *objective_, sums_, false);
  }
  Parameters gradients(const Parameters& at) {
    model_.set(at);
    model_.evaluate(documents_.rows, documents_.columns, *objective_, sums_, true);
    return model_.gradients();
  }
  /// Value of a metric after loss(), for a step of these samples.
  double metric(std::string_view name, int64_t samples) const {
    const std::span<const MetricSpec> specs = objective_->metrics();
    std::vector<ExactSum> exact(specs.size());
    std::vector<double> sums;
    for (size_t m = 0; m < specs.size(); ++m) {
      const Tensor row = sums_.rows(static_cast<int64_t>(m), 1);
      copy_to_host(exact[m].limbs().data(), row.data, row.bytes(), stream());
      stream().synchronize();
      sums.push_back(exact[m].value());
    }
    const auto found = std::ranges::find(specs, name, &MetricSpec::name);
    LLMTRAIN_CHECK(found != specs.end(), "the objective has no such metric");
    return metric_value(specs, sums, static_cast<size_t>(found - specs.begin()), samples);
  }
  /// See largest_slope_error().
  double largest_error(double factor) {
    const Parameters point = parameters();
    return largest_slope_error(point, gradients(point), factor, [&](const Parameters& moved) { return loss(moved); });
  }

 private:
  Documents documents_;
  std::unique_ptr<Objective> objective_;
  std::unique_ptr<Communicator> communicator_;
  TestModel model_;
  Arena arena_;
  Tensor sums_;
  DeviceBuffer memory_;
};

void expect_right_gradients(DocumentLoss&& loss) {
  EXPECT_LT(loss.largest_error(1), 1e-2);
  EXPECT_GT(loss.largest_error(1.05), 3e-2) << "the control";
}

DecoderShape small_shape() { return shape_of(Golden("llama_packed")); }

TEST(DocumentLosses, OfPairsHaveTheGradientOfFiniteDifferences) {
  DpoConfig config;
  config.beta = 2;
  Documents documents(small_shape().config.vocab_size, false);
  documents.columns.references = {-20, -15, -9, -30};
  expect_right_gradients({small_shape(), make_dpo(config), documents});
}

TEST(DocumentLosses, OfLabelsHaveTheGradientOfFiniteDifferences) {
  DpoConfig config;
  config.loss = {"kto"};
  config.beta = 1;
  config.undesirable_weight = 0.5;
  Documents documents(small_shape().config.vocab_size, false);
  documents.columns.references = {-20, -15, -9, -30};
  documents.columns.values = {1, 0, 0, 1};
  std::unique_ptr<Objective> kto = make_kto(config);
  kto->begin_step({{}, {}, {-3, -4, -5, -6}, {-4, -3, -7, -6}});
  expect_right_gradients({small_shape(), std::move(kto), documents});
}

// Its KL is the mean of log-ratios of prompts with the answers of others, over the whole step, and at least 0.
TEST(DocumentLosses, OfLabelsComparesWithTheDivergenceOfTheStep) {
  DpoConfig config;
  config.loss = {"kto"};
  Documents documents(small_shape().config.vocab_size, false);
  documents.columns.references = {-20, -15, -9, -30};
  documents.columns.values = {1, 0, 0, 1};
  const auto divergence = [&](std::vector<double> policy, std::vector<double> reference) {
    std::unique_ptr<Objective> kto = make_kto(config);
    kto->begin_step({{}, {}, std::move(policy), std::move(reference)});
    DocumentLoss loss(small_shape(), std::move(kto), documents);
    loss.loss(loss.parameters());
    return loss.metric("kl", 4);
  };
  EXPECT_EQ(divergence({-3, -4, -5, -6}, {-4, -3, -7, -6}), 0.5);
  EXPECT_EQ(divergence({-3, -4, -5, -6}, {-3, -4, -5, -5}), 0);
}

TEST(DocumentLosses, OfScoresHaveTheGradientOfFiniteDifferences) {
  DecoderShape shape = small_shape();
  shape.config.head = ModelConfig::Head::score;
  Documents documents(shape.config.vocab_size, true);
  documents.columns.values = {0.5, 0, 0.25, 0};  // margins
  expect_right_gradients({shape, make_reward({.center_coefficient = 0.1}), documents});
}

}  // namespace
}  // namespace llmtrain::test
