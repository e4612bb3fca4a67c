#include "layers/head.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <memory>
#include <numeric>
#include <random>

#include "harness/harness.hpp"
#include "harness/whole_parameters.hpp"
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

/// Gradients of a frozen head's adapter and of x over 300 rows, in groups of `gradient_bytes`. dx overwrites x, as in a
/// decoder.
std::map<std::string, std::vector<float>> adapter_gradients(int64_t gradient_bytes, double dropout, bool dora,
                                                            uint64_t seed = 5) {
  constexpr int64_t rows = 300, channels = 8, vocabulary = 16;
  std::vector<UnitSpec> units;
  UnitBuilder builder(units, "final", [](const std::string&) { return false; });
  Head head;
  head.gradient_bytes = gradient_bytes;
  head.linear.in = channels;
  head.linear.out = head.vocabulary = vocabulary;
  head.linear.weight = builder.matrix("head.weight", vocabulary, channels, Initializer::normal(0.5), {});
  head.linear.declare_adapters(builder, {{"head", vocabulary}}, [&](const std::string&) {
    return AdapterShape{3, 0.75, dropout, dora};
  });
  Arena arena;
  ParamStore params(units, {});
  params.plan(arena);
  arena.reserve_scratch(head.scratch_bytes(DType::f32, rows));
  arena.reserve_workspace(head.workspace_bytes(DType::f32, rows, true));
  Tensor x, numbers, zeros;
  Batch batch;
  arena.add(x, MemoryCategory::data, "x", DType::f32, {rows, channels});
  arena.add(numbers, MemoryCategory::data, "numbers", DType::f32, {4, rows});
  arena.add(batch.targets, MemoryCategory::data, "targets", DType::i32, {rows});
  arena.add(batch.sequence_offsets, MemoryCategory::data, "offsets", DType::i32, {rows});
  arena.add(batch.sequence_ids, MemoryCategory::data, "sequences", DType::i64, {rows});
  const DeviceBuffer memory(arena.bytes());
  arena.commit(memory.data());
  params.start(communicator(), stream());
  params.initialize(1);
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 0.5F);
  const auto draw = [&](int64_t count, float around) {
    std::vector<float> values(static_cast<size_t>(count));
    for (float& v : values) v = around + normal(random);
    return values;
  };
  for (int unit = 0; unit < params.units().size(); ++unit) {
    for (size_t p = 0; p < units[static_cast<size_t>(unit)].params.size(); ++p) {
      const ParamSpec& spec = units[static_cast<size_t>(unit)].params[p];
      const bool magnitude = spec.name.ends_with("magnitude_vector");
      set_parameter(params, unit, static_cast<int>(p), draw(spec.numel(), magnitude ? 2.0F : 0.0F).data());
    }
  }
  params.publish_weights();
  std::vector<int32_t> targets(rows), offsets(rows);
  for (int32_t& target : targets) target = static_cast<int32_t>(random() % vocabulary);
  std::iota(offsets.begin(), offsets.end(), 0);
  const std::vector<int64_t> sequences(rows, 4);
  const std::vector<float> inputs = draw(rows * channels, 0), cotangents(rows, 1);
  const auto put = [](const Tensor& to, const auto& from) {
    copy_to_device(to.data, from.data(), to.bytes(), stream());
  };
  put(x, inputs);
  put(batch.targets, targets);
  put(batch.sequence_offsets, offsets);
  put(batch.sequence_ids, sequences);
  const auto row = [&](int64_t i) { return numbers.rows(i, 1).reshaped({rows}); };
  put(row(3), cotangents);
  batch.tokens = rows;
  Context ctx{params, arena, stream(), seed, 3, true};
  params.reducer().begin_step(1);
  params.reducer().begin_round(0);
  params.reducer().begin_micro_batch(true, true);
  for (int unit = 0; unit < params.units().size(); ++unit) params.acquire(unit);
  head.forward_backward(ctx, batch, x, x, {row(0), row(1), row(2), {}}, {row(3), {}, {}});
  for (int unit = 0; unit < params.units().size(); ++unit) params.release(unit);
  for (int unit = 0; unit < params.units().size(); ++unit) params.reduce(unit);
  params.reducer().finish();
  std::map<std::string, std::vector<float>> found;
  const auto get = [&](const std::string& name, const Tensor& from) {
    found[name].resize(static_cast<size_t>(from.numel()));
    copy_to_host(found[name].data(), from.data, from.bytes(), stream());
    stream().synchronize();
  };
  get("x", x);
  for (int unit = 0; unit < params.units().size(); ++unit) {
    for (size_t p = 0; params.units()[unit].trained() && p < params.units()[unit].spec.params.size(); ++p) {
      const ParamSpec& spec = params.units()[unit].spec.params[p];
      const int64_t offset = params.units()[unit].layout.offset(static_cast<int>(p));
      get(spec.name, params.shard(unit, 0).gradient.rows(offset, spec.numel()));
    }
  }
  return found;
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    size += double{b[i]} * b[i];
  }
  return std::sqrt(difference / size);
}

TEST(HeadLayer, GradientsOfAdaptersAreSumsOverGroupsOfRows) {
  for (const bool dora : {false, true}) {
    for (const double dropout : {0.0, 0.25}) {
      const auto whole = adapter_gradients(int64_t{1} << 30, dropout, dora),
                 groups = adapter_gradients(1, dropout, dora);
      const auto other = adapter_gradients(1, dropout, dora, 6);
      EXPECT_EQ(whole.size(), dora ? 4 : 3);
      for (const auto& [name, values] : whole) {
        EXPECT_LT(distance(groups.at(name), values), 1e-5) << name;
        if (dropout > 0) {
          EXPECT_GT(distance(other.at(name), values), 1e-3) << "control: other masks, " << name;
        }
      }
    }
  }
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
