#include "layers/embedding.hpp"

#include <gtest/gtest.h>

#include <set>

#include "layers/layer_check.hpp"

namespace llmtrain::test {
namespace {

LayerCase embedding_case(Embedding& embedding, bool positions) {
  constexpr int64_t channels = 9, vocabulary = 11;
  LayerCase c{.documents = {7, 12}, .y_rows = 19, .y_columns = channels};
  c.declare = [&embedding, positions](UnitBuilder& unit) {
    embedding.table = unit.matrix("table", vocabulary, channels, Initializer::zeros(), {});
    if (positions) embedding.positions = unit.matrix("positions", 12, channels, Initializer::zeros(), {});
  };
  c.plan = [](Arena&, int64_t) { return int64_t{0}; };
  c.forward = [&embedding](Context& ctx, const Batch& batch, const Tensor& y, const Tensor&) {
    ctx.training = true;
    embedding.forward(ctx, batch, y);
  };
  c.backward = [&embedding](Context& ctx, const Batch& batch, const Tensor&, const Tensor& dy, const Tensor&) {
    embedding.backward(ctx, batch, dy, false);
  };
  return c;
}

TEST(EmbeddingLayer, GradientIsTheSlope) {
  for (const bool positions : {false, true}) {
    for (const double dropout : {0.0, 0.3}) {
      Embedding embedding;
      embedding.scale = 3.5f;
      embedding.dropout = dropout;
      expect_right_gradients(embedding_case(embedding, positions));
    }
  }
}

/// The same with adapters of both tables.
LayerCase adapted_case(Embedding& embedding) {
  LayerCase c = embedding_case(embedding, true);
  c.declare = [&embedding, before = c.declare](UnitBuilder& unit) {
    before(unit);
    const auto rule = [](const std::string& module) { return AdapterShape{module == "table" ? 3 : 2, 0.75}; };
    embedding.table_adapter = TableAdapter::declare(unit, "table", 11, 9, rule);
    embedding.positions_adapter = TableAdapter::declare(unit, "positions", 12, 9, rule);
  };
  c.plan = [&embedding](Arena&, int64_t rows) { return embedding.scratch_bytes(DType::f32, rows, 9); };
  return c;
}

TEST(EmbeddingLayer, GradientIsTheSlopeWithAdapters) {
  for (const double dropout : {0.0, 0.3}) {
    Embedding embedding;
    embedding.scale = 3.5f;
    embedding.dropout = dropout;
    expect_right_gradients(adapted_case(embedding));
  }
}

TEST(EmbeddingLayer, AForgottenScaleOfAnAdapterIsSeen) {
  Embedding embedding;
  embedding.scale = 3.5f;
  LayerCase layer = adapted_case(embedding);
  layer.backward = [&](Context& ctx, const Batch& batch, const Tensor&, const Tensor& dy, const Tensor&) {
    Embedding wrong = embedding;
    wrong.table_adapter.scale = 0.7f;
    wrong.backward(ctx, batch, dy, false);
  };
  expect_wrong_gradients(layer);
}

TEST(EmbeddingLayer, MasksDifferBySeedAndStep) {
  const auto masked = [](uint64_t seed, int64_t step) {
    Embedding embedding;
    embedding.dropout = 0.5;
    return output_at(embedding_case(embedding, true), seed, step);
  };
  EXPECT_EQ(masked(1, 0), masked(1, 0));
  EXPECT_EQ(std::set({masked(1, 0), masked(2, 0), masked(1, 1)}).size(), 3);
}

TEST(EmbeddingLayer, AForgottenScaleIsSeen) {
  Embedding embedding;
  embedding.scale = 3.5f;
  LayerCase layer = embedding_case(embedding, true);
  layer.backward = [&](Context& ctx, const Batch& batch, const Tensor&, const Tensor& dy, const Tensor&) {
    Embedding wrong = embedding;
    wrong.scale = 1;
    wrong.backward(ctx, batch, dy, false);
  };
  expect_wrong_gradients(layer);
}

}  // namespace
}  // namespace llmtrain::test
