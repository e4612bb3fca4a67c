#include "kernels/head_norm.hpp"

#include <gtest/gtest.h>

#include <tuple>

#include "harness/dtype_text.hpp"
#include "kernels/kernel_test.hpp"

namespace llmtrain {
namespace {

using test::Array;
using test::Values;

constexpr int64_t heads = 4, kv_heads = 2, normed = heads + kv_heads;
constexpr double epsilon = 1e-3;  // large enough to be seen

/// Heads of [N, (H + 2 G) D] normalised; weights of queries, then of keys [2 D].
Values naive(const Values& in, const Values& weights, int64_t head_dim, double offset) {
  Values out = in;
  const int64_t width = (normed + kv_heads) * head_dim;
  for (int64_t r = 0; r < std::ssize(in) / width; ++r) {
    for (int64_t h = 0; h < normed; ++h) {
      const auto at = [&](int64_t d) { return static_cast<size_t>(r * width + h * head_dim + d); };
      double squares = 0;
      for (int64_t d = 0; d < head_dim; ++d) squares += in[at(d)] * in[at(d)] / static_cast<double>(head_dim);
      for (int64_t d = 0; d < head_dim; ++d) {
        const auto w = static_cast<size_t>(d + (h < heads ? 0 : head_dim));
        out[at(d)] = in[at(d)] / std::sqrt(squares + epsilon) * (offset + weights[w]);
      }
    }
  }
  return out;
}

class HeadNorm : public testing::TestWithParam<std::tuple<DType, DType, int64_t, float>> {
 protected:
  HeadNorm() : dtype(std::get<0>(GetParam())), d(std::get<2>(GetParam())), width((normed + kv_heads) * d) {
    const DType weights = std::get<1>(GetParam());
    shape = {heads, kv_heads, d, static_cast<float>(epsilon), std::get<3>(GetParam())};
    qkv = Array(dtype, {rows, width}, test::random_values(rows * width, 1, 2.0));
    raw = Array(dtype, {rows, normed * d});
    rstd = Array(DType::f32, {rows, normed});
    Values near_one = test::random_values(2 * d, 2, 0.5);
    for (double& v : near_one) v += 1;
    query_weight = Array(weights, {d}, Values(near_one.begin(), near_one.begin() + d));
    key_weight = Array(weights, {d}, Values(near_one.begin() + d, near_one.end()));
    x = qkv.values();
  }
  void SetUp() override {
    if (!test::do_mix(dtype, std::get<1>(GetParam()))) GTEST_SKIP() << "no kernel takes both types";
  }
  Values weights() const {
    Values w = query_weight.values();
    const Values k = key_weight.values();
    w.insert(w.end(), k.begin(), k.end());
    return w;
  }
  void forward() { head_norm_forward({qkv, raw, rstd, query_weight, key_weight}, shape, test::stream()); }

  static constexpr int64_t rows = 37;
  DType dtype;
  int64_t d, width;
  HeadNormShape shape;
  Array qkv, raw, rstd, query_weight, key_weight;
  Values x;
};

TEST_P(HeadNorm, ForwardAgreesWithDouble) {
  forward();
  const Values expected = naive(x, weights(), d, shape.weight_offset);
  test::expect_close(qkv.values(), expected,
                     [&](size_t i) { return 2e-6 + test::rounding(dtype) * std::fabs(expected[i]); });
  EXPECT_NE(qkv.values(), x) << "control";
  for (int64_t r = 0; r < rows; ++r) {  // values are unchanged, the inputs are kept
    for (int64_t c = 0; c < width; ++c) {
      const auto at = static_cast<size_t>(r * width + c);
      if (c >= normed * d) {
        ASSERT_EQ(qkv.values()[at], x[at]);
      } else if (r % 12 == 0) {
        ASSERT_EQ(raw.values()[static_cast<size_t>(r * normed * d + c)], x[at]);
      }
    }
  }
}

TEST_P(HeadNorm, BackwardAgreesWithFiniteDifferences) {
  forward();
  const Array dqkv(dtype, {rows, width}, test::random_values(rows * width, 5));
  const Array dquery(DType::f32, {d}), dkey(DType::f32, {d});
  const Values dy = dqkv.values();
  HeadNormBackward a{dqkv, dquery, dkey, raw, rstd, query_weight, key_weight};
  head_norm_backward(a, shape, test::stream());
  const double offset = shape.weight_offset;
  const Values slope = test::numeric_gradient([&](const Values& v) { return naive(v, weights(), d, offset); }, x, dy);
  test::expect_close(
      dqkv.values(), slope, [&](size_t i) { return 1e-5 + test::rounding(dtype) * std::fabs(slope[i]); }, "dqkv");
  Values dweights = test::numeric_gradient([&](const Values& v) { return naive(x, v, d, offset); }, weights(), dy);
  const auto check = [&](const char* what) {
    const auto bound = [](size_t) { return 2e-4; };
    test::expect_close(dquery.values(), Values(dweights.begin(), dweights.begin() + d), bound, what);
    test::expect_close(dkey.values(), Values(dweights.begin() + d, dweights.end()), bound, what);
  };
  check("weights");
  EXPECT_GT(test::largest(dweights), 0.1) << "the bound would be empty";
  const Array again(dtype, {rows, width}, dy);
  a.dqkv = again;
  a.accumulate = true;
  head_norm_backward(a, shape, test::stream());
  for (double& v : dweights) v *= 2;
  check("weights, accumulated");
}

INSTANTIATE_TEST_SUITE_P(All, HeadNorm,
                         testing::Combine(testing::Values(DType::f32, DType::bf16, DType::f16),
                                          testing::Values(DType::f32, DType::bf16, DType::f16),
                                          testing::Values(int64_t{6}, int64_t{16}, int64_t{33}),
                                          testing::Values(0.0f, 1.0f)));

/// Queries of all heads normalised together, then keys; weights of both, one after the other.
Values naive_whole(const Values& in, const Values& weights, int64_t head_dim) {
  Values out = in;
  const int64_t width = (normed + kv_heads) * head_dim;
  for (int64_t r = 0; r < std::ssize(in) / width; ++r) {
    for (const auto& [first, last] : {std::pair(int64_t{0}, heads * head_dim), {heads * head_dim, normed * head_dim}}) {
      double squares = 0;
      for (int64_t c = first; c < last; ++c) squares += std::pow(in[static_cast<size_t>(r * width + c)], 2);
      for (int64_t c = first; c < last; ++c) {
        out[static_cast<size_t>(r * width + c)] *=
            weights[static_cast<size_t>(c)] / std::sqrt(squares / static_cast<double>(last - first) + epsilon);
      }
    }
  }
  return out;
}

TEST(WholeHeadNorm, AgreesWithDoubleAndItsSlope) {
  constexpr int64_t rows = 35, d = 6, width = (normed + kv_heads) * d;
  const HeadNormShape shape{heads, kv_heads, d, static_cast<float>(epsilon), 0, true};
  const Values weights = test::random_values(normed * d, 2);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Array query_weight(DType::f32, {heads * d}, Values(weights.begin(), weights.begin() + heads * d));
    const Array key_weight(DType::f32, {kv_heads * d}, Values(weights.begin() + heads * d, weights.end()));
    const Array qkv(dtype, {rows, width}, test::random_values(rows * width, 1, 2.0));
    const Array raw(dtype, {rows, normed * d}), rstd(DType::f32, {rows, 2});
    const Values x = qkv.values();
    Values w = query_weight.values();
    for (const double v : key_weight.values()) w.push_back(v);
    head_norm_forward({qkv, raw, rstd, query_weight, key_weight}, shape, test::stream());
    const Values expected = naive_whole(x, w, d);
    const auto close = [&](const Values& right) {
      return [&, right](size_t i) { return 1e-5 + test::rounding(dtype) * std::fabs(right[i]); };
    };
    test::expect_close(qkv.values(), expected, close(expected));
    EXPECT_GT(test::largest(expected), 0.5) << "the bound would be empty";
    const Array dqkv(dtype, {rows, width}, test::random_values(rows * width, 5));
    const Array dquery(DType::f32, {heads * d}), dkey(DType::f32, {kv_heads * d});
    const Values dy = dqkv.values();
    head_norm_backward({dqkv, dquery, dkey, raw, rstd, query_weight, key_weight}, shape, test::stream());
    const Values slope = test::numeric_gradient([&](const Values& v) { return naive_whole(v, w, d); }, x, dy);
    test::expect_close(dqkv.values(), slope, close(slope), "dqkv");
    const Values dw = test::numeric_gradient([&](const Values& v) { return naive_whole(x, v, d); }, w, dy);
    Values found = dquery.values();
    for (const double v : dkey.values()) found.push_back(v);
    test::expect_close(
        found, dw, [](size_t) { return 2e-4; }, "weights");
  }
}

/// Columns of two blocks of heads, each with half of the queries, keys and values, or of the weights where there are no
/// values.
Values half_of(const Values& whole, int64_t block, int64_t d, bool values) {
  const int64_t width = (normed + (values ? kv_heads : 0)) * d;
  std::vector<std::pair<int64_t, int64_t>> sections = {{0, heads}, {heads, kv_heads}};
  if (values) sections.emplace_back(normed, kv_heads);
  Values half;
  for (int64_t first = 0; first < std::ssize(whole); first += width) {
    for (const auto& [head, count] : sections) {
      const auto begin = whole.begin() + first + (head + block * count / 2) * d;
      half.insert(half.end(), begin, begin + count / 2 * d);
    }
  }
  return half;
}

// Sums of two blocks make the norms of both.
TEST(WholeHeadNorm, OfBlocksIsThatOfAllHeads) {
  constexpr int64_t rows = 13, d = 6, width = (normed + kv_heads) * d, half = width / 2;
  const HeadNormShape shape{heads, kv_heads, d, static_cast<float>(epsilon), 0, true};
  HeadNormShape of_block{heads / 2, kv_heads / 2, d, static_cast<float>(epsilon), 0, true, 2};
  const Values weights = test::random_values(normed * d, 2), x = test::random_values(rows * width, 1, 2.0),
               dy = test::random_values(rows * width, 5);
  struct Pass {
    Array qkv, raw, rstd, query_weight, key_weight, dqkv, dquery, dkey, squares, products;

    Pass(const HeadNormShape& s, const Values& values, const Values& w, const Values& slopes)
        : qkv(DType::f32, {rows, (s.heads + 2 * s.kv_heads) * d}, values),
          raw(DType::f32, {rows, (s.heads + s.kv_heads) * d}),
          rstd(DType::f32, {rows, 2}),
          query_weight(DType::f32, {s.heads * d}, Values(w.begin(), w.begin() + s.heads * d)),
          key_weight(DType::f32, {s.kv_heads * d}, Values(w.begin() + s.heads * d, w.end())),
          dqkv(DType::f32, {rows, (s.heads + 2 * s.kv_heads) * d}, slopes),
          dquery(DType::f32, {s.heads * d}),
          dkey(DType::f32, {s.kv_heads * d}),
          squares(DType::f32, {rows, 2}),
          products(DType::f32, {rows, 2}) {}
    HeadNormForward forward(const Tensor& of_blocks) const {
      return {qkv, raw, rstd, query_weight, key_weight, of_blocks};
    }
    HeadNormBackward backward(const Tensor& of_blocks) const {
      return {dqkv, dquery, dkey, raw, rstd, query_weight, key_weight, false, of_blocks};
    }
  };
  const Pass whole(shape, x, weights, dy);
  head_norm_forward(whole.forward({}), shape, test::stream());
  head_norm_backward(whole.backward({}), shape, test::stream());
  std::vector<Pass> blocks;
  for (int64_t b = 0; b < 2; ++b) {
    blocks.emplace_back(of_block, half_of(x, b, d, true), half_of(weights, b, d, false), half_of(dy, b, d, true));
  }
  const auto sum = [](const Array& a, const Array& b) {
    Values both = a.values();
    for (size_t i = 0; i < both.size(); ++i) both[i] += b.values()[i];
    return Array(DType::f32, {rows, 2}, both);
  };
  for (const Pass& p : blocks) head_norm_squares(p.squares, p.qkv, of_block, test::stream());
  const Array squares = sum(blocks[0].squares, blocks[1].squares);
  for (const Pass& p : blocks) head_norm_forward(p.forward(squares), of_block, test::stream());
  for (const Pass& p : blocks) head_norm_products(p.products, p.backward({}), of_block, test::stream());
  const Array products = sum(blocks[0].products, blocks[1].products);
  for (const Pass& p : blocks) head_norm_backward(p.backward(products), of_block, test::stream());
  for (int64_t b = 0; b < 2; ++b) {
    const Pass& p = blocks[static_cast<size_t>(b)];
    const auto near = [](size_t) { return 1e-5; };
    test::expect_close(p.qkv.values(), half_of(whole.qkv.values(), b, d, true), near, "forward");
    test::expect_close(p.dqkv.values(), half_of(whole.dqkv.values(), b, d, true), near, "dqkv");
    Values slopes = whole.dquery.values(), own = p.dquery.values();
    for (const double v : whole.dkey.values()) slopes.push_back(v);
    for (const double v : p.dkey.values()) own.push_back(v);
    test::expect_close(own, half_of(slopes, b, d, false), near, "weights");
  }
  EXPECT_EQ(blocks[0].qkv.values().size(), static_cast<size_t>(rows * half));
  EXPECT_THROW(head_norm_forward(blocks[0].forward({}), of_block, test::stream()), Error) << "sums are missing";
}

TEST(HeadNormThreads, BitsDoNotDependOnThreads) {
  constexpr int64_t rows = 211, d = 24, width = (normed + kv_heads) * d;
  const HeadNormShape shape{heads, kv_heads, d, 1e-6f, 0};
  const Array query_weight(DType::bf16, {d}, test::random_values(d, 2)),
      key_weight(DType::bf16, {d}, test::random_values(d, 3));
  test::expect_same_bits_for_threads([&](bool changed) {
    const Array qkv(DType::bf16, {rows, width}, test::random_values(rows * width, changed ? 6 : 5));
    const Array raw(DType::bf16, {rows, normed * d}), rstd(DType::f32, {rows, normed});
    const Array dqkv(DType::bf16, {rows, width}, test::random_values(rows * width, 7));
    const Array dquery(DType::f32, {d}), dkey(DType::f32, {d});
    head_norm_forward({qkv, raw, rstd, query_weight, key_weight}, shape, test::stream());
    head_norm_backward({dqkv, dquery, dkey, raw, rstd, query_weight, key_weight}, shape, test::stream());
    test::Bytes all;
    for (const Array* part : {&qkv, &rstd, &dqkv, &dquery, &dkey}) {
      const auto bytes = part->bytes();
      all.insert(all.end(), bytes.begin(), bytes.end());
    }
    return all;
  });
}

}  // namespace
}  // namespace llmtrain
