// The bits of a tile's scores are those of Dropout::scale, wherever a segment's offsets begin.

#include <gtest/gtest.h>

#include "kernels/cuda/attention_dropout.cuh"
#include "kernels/kernel_test.hpp"

namespace llmtrain::cuda {
namespace {

constexpr int tiles = 8, scores = 4 * tiles;

/// keys [lane, bit], queries [lane, bit]: factors.
struct AllFactors {
  static constexpr int threads = warp_lanes;
  SegmentDropout dropout;
  int query, key;
  float *of_keys, *of_queries;
  void operator()() const {
    const uint32_t keys = dropout.kept_keys<tiles>(query, key), queries = dropout.kept_queries<tiles>(query, key);
    for (int bit = 0; bit < scores; ++bit) {
      of_keys[lane() * scores + bit] = dropout.factor(keys, bit);
      of_queries[lane() * scores + bit] = dropout.factor(queries, bit);
    }
  }
};

TEST(SegmentDropout, HasTheHostsBits) {
  constexpr int query = 80, key = 48, head = 5;
  constexpr uint64_t sequence = uint64_t{1} << 33 | 7;
  for (const float probability : {0x1p-33F, 0.1F, 0.5F, 0.9F}) {
    for (const int offset : {0, 1, 2, 3, 4, 1022}) {
      const Dropout dropout{probability, 0x123456789ABCDEF};
      const test::Array keys(DType::f32, {warp_lanes, scores}), queries(DType::f32, {warp_lanes, scores});
      launch({1}, test::stream(),
             AllFactors{{KernelDropout(dropout), sequence, head, offset},
                        query,
                        key,
                        keys.tensor().as<float>(),
                        queries.tensor().as<float>()});
      const auto expected = [&](int q, int k) {
        return dropout.scale(sequence, ((uint64_t{head} << 24) + static_cast<uint64_t>(offset + q)) * (1 << 24) +
                                           static_cast<uint64_t>(offset + k));
      };
      const test::Values of_keys = keys.values(), of_queries = queries.values();
      for (int at = 0; at < warp_lanes * scores; ++at) {
        const int g = at / scores / 4, t = at / scores % 4, i = at % scores / 4, e = at % 4;
        const int row = g + e / 2 * 8, column = 8 * i + 2 * t + e % 2;  // mma.cuh: C
        const auto place = static_cast<size_t>(at);
        ASSERT_EQ(of_keys[place], expected(query + row, key + column)) << probability << ' ' << offset << ' ' << at;
        ASSERT_EQ(of_queries[place], expected(query + column, key + row)) << probability << ' ' << offset << ' ' << at;
      }
    }
  }
}

}  // namespace
}  // namespace llmtrain::cuda
