#include "layers/head.hpp"

#include <gtest/gtest.h>

#include "layers/layer_check.hpp"

namespace llmtrain::test {
namespace {

/// y [3, N]: logp, lse and entropy of every row.
struct HeadUnderTest {
  float temperature = 1;
  bool some = false;  ///< True if only some tokens are kept
  Head head = {};
  Tensor statistics = {};  ///< [3, N], of the backward pass
  Tensor kept = {};        ///< [N, 1]

  Batch sampled(Context& ctx, Batch batch) {
    ctx.temperature = temperature;
    if (!some) return batch;
    std::vector<int32_t> ids(static_cast<size_t>(batch.tokens));
    copy_to_host(ids.data(), batch.targets.data, batch.targets.bytes(), ctx.stream);
    ctx.stream.synchronize();
    std::vector<uint32_t> words;
    for (size_t r = 0; r < ids.size(); ++r) {
      words.push_back(static_cast<uint32_t>(r * 2654435761U >> 7) | 1U << (ids[r] < 0 ? r % 13 : ids[r]));
    }
    copy_to_device(kept.data, words.data(), kept.bytes(), ctx.stream);
    ctx.stream.synchronize();
    batch.kept = kept;
    return batch;
  }

  static TokenStatistics parts(const Tensor& y) {
    return {
        y.rows(0, 1).reshaped({y.dim(1)}), y.rows(1, 1).reshaped({y.dim(1)}), y.rows(2, 1).reshaped({y.dim(1)}), {}};
  }

  LayerCase layer(float softcap, int rows = 21) {
    constexpr int64_t channels = 8;
    head.linear.in = channels;
    head.linear.out = 16;
    head.vocabulary = 13;
    head.softcap = softcap;
    LayerCase c{.documents = {rows}, .x_columns = channels, .y_rows = 3, .y_columns = rows};
    c.vocabulary = 13;
    c.declare = [this](UnitBuilder& unit) {
      head.linear.weight = unit.matrix("table", head.linear.out, channels, Initializer::zeros(), {});
    };
    c.plan = [this](Arena& arena, int64_t n) {
      arena.add(statistics, MemoryCategory::data, "statistics", DType::f32, {3, n});
      arena.add(kept, MemoryCategory::data, "kept", DType::u32, {n, 1});
      return head.scratch_bytes(DType::f32, n);
    };
    c.forward = [this](Context& ctx, const Batch& batch, const Tensor& y, const Tensor& x) {
      head.forward(ctx, sampled(ctx, batch), x, parts(y));
    };
    c.backward = [this](Context& ctx, const Batch& batch, const Tensor& dx, const Tensor& dy, const Tensor& x) {
      const TokenStatistics d = parts(dy);
      head.forward_backward(ctx, sampled(ctx, batch), dx, x, parts(statistics), {d.logp, d.lse, d.entropy});
    };
    return c;
  }
};

TEST(HeadLayer, GradientIsTheSlope) {
  for (const float softcap : {0.0f, 1.5f, 30.0f}) {
    HeadUnderTest test;
    expect_right_gradients(test.layer(softcap));
  }
}

TEST(HeadLayer, GradientIsTheSlopeOverSeveralBlocksAndGroupsOfRows) {
  for (const bool groups : {false, true}) {
    HeadUnderTest test;
    test.head.logits_bytes = 1;
    if (groups) test.head.gradient_bytes = 1;
    const LayerCase layer = test.layer(0, 300);
    ASSERT_EQ(test.head.block_rows(300), 128) << "three blocks";
    ASSERT_EQ(test.head.group_rows(DType::f32, 300), groups ? 128 : 300);
    expect_right_gradients(layer);
  }
}

TEST(HeadLayer, RowsAreCutIntoPartsThatFit) {
  Head gpt2;
  gpt2.linear.out = 50257;
  gpt2.logits_bytes = 64 << 20;
  gpt2.gradient_bytes = 52 << 20;
  EXPECT_EQ(gpt2.block_rows(1024), 256);
  EXPECT_EQ(gpt2.group_rows(DType::bf16, 1024), 512);
  EXPECT_EQ(gpt2.group_rows(DType::bf16, 4096), 512);
  EXPECT_EQ(gpt2.group_rows(DType::f32, 1024), 256);
  EXPECT_EQ(gpt2.group_rows(DType::bf16, 100), 100);
  EXPECT_EQ(gpt2.scratch_bytes(DType::bf16, 4096),
            Arena::aligned(gpt2.columns() * (512 * 2)) + Arena::aligned(gpt2.columns() * 256 * 4));
  gpt2.linear.out = int64_t{1} << 24;
  EXPECT_EQ(gpt2.block_rows(1000), 128) << "never less";
}

TEST(HeadLayer, AForgottenSoftcapIsSeen) {
  HeadUnderTest test;
  LayerCase layer = test.layer(1.5f);
  layer.backward = [&](Context& ctx, const Batch& batch, const Tensor& dx, const Tensor& dy, const Tensor& x) {
    Head wrong = test.head;
    wrong.softcap = 0;
    const TokenStatistics d = HeadUnderTest::parts(dy);
    wrong.forward_backward(ctx, batch, dx, x, HeadUnderTest::parts(test.statistics), {d.logp, d.lse, d.entropy});
  };
  expect_wrong_gradients(layer);
}

TEST(HeadLayer, GradientIsTheSlopeAtATemperatureAmongKeptTokens) {
  for (const bool some : {false, true}) {
    for (const float softcap : {0.0f, 1.5f}) {
      HeadUnderTest test{.temperature = 0.7f, .some = some};
      expect_right_gradients(test.layer(softcap));
    }
  }
}

TEST(HeadLayer, KeptTokensAreThoseOfTheirRowsOverSeveralBlocks) {
  HeadUnderTest test{.temperature = 0.7f, .some = true};
  test.head.logits_bytes = 1;
  expect_right_gradients(test.layer(0, 150));
}

TEST(HeadLayer, AForgottenTemperatureIsSeen) {
  HeadUnderTest test{.temperature = 0.7f};
  LayerCase layer = test.layer(0);
  layer.backward = [&](Context& ctx, const Batch& batch, const Tensor& dx, const Tensor& dy, const Tensor& x) {
    ctx.temperature = 1;
    const TokenStatistics d = HeadUnderTest::parts(dy);
    test.head.forward_backward(ctx, batch, dx, x, HeadUnderTest::parts(test.statistics), {d.logp, d.lse, d.entropy});
  };
  expect_wrong_gradients(layer);
}

}  // namespace
}  // namespace llmtrain::test
