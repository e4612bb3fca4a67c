// cuDNN's attention on a GPU that has it, beside naive loops: it is what Hopper runs by default. Skipped where there is
// none; its graphs are looked at without a GPU in cuda/cudnn_test.cpp.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "kernels/attention_reference.hpp"
#include "kernels/cuda/cudnn_attention.hpp"

namespace llmtrain::test {
namespace {

struct CudnnCase {
  const char* name;
  int64_t heads, kv_heads, head_dim;
  int length, sequences;
};
void PrintTo(const CudnnCase& c, std::ostream* os) { *os << c.name; }

const CudnnCase cases[] = {
    {"heads_of_64", 2, 2, 64, 128, 3},     {"heads_of_128", 2, 2, 128, 192, 2},
    {"grouped_queries", 6, 2, 64, 128, 2}, {"one_key_head_of_128", 4, 1, 128, 64, 4},
    {"one_sequence", 3, 3, 64, 512, 1},    {"heads_of_80", 2, 1, 80, 128, 2},
};

AttentionCase whole(const CudnnCase& c, DType dtype) {
  AttentionCase whole;
  whole.shape = {c.heads, c.kv_heads, c.head_dim, 0,
                 static_cast<float>(1 / std::sqrt(static_cast<double>(c.head_dim)))};
  whole.shape.longest = c.length;
  whole.lengths.assign(static_cast<size_t>(c.sequences), c.length);
  whole.dtype = dtype;
  return whole;
}

class CudnnAttentionOnDevice : public testing::TestWithParam<CudnnCase> {
 protected:
  void SetUp() override {
    if (attention_library().empty()) GTEST_SKIP() << "cuDNN's attention is not taken here";
  }

  /// The library's lse [B, H, T] as [H, B T].
  static std::vector<double> by_heads(const AttentionCase& c, const std::vector<double>& lse) {
    const auto heads = static_cast<size_t>(c.shape.heads), length = static_cast<size_t>(c.shape.longest);
    const size_t rows = lse.size() / heads;
    std::vector<double> sorted(lse.size());
    for (size_t i = 0; i < lse.size(); ++i) {
      const size_t sequence = i / (heads * length), head = i / length % heads;
      sorted[head * rows + sequence * length + i % length] = lse[i];
    }
    return sorted;
  }

  /// Bounds as in attention_test.cpp; of lse a tensor core's sums, which are cut off instead of rounded.
  static AttentionResult expect_close(const AttentionCase& c, double largest, double mean) {
    EXPECT_GT(cuda::cudnn_workspace_bytes(c.shape, c.rows()), 0) << "the kernels are our own";
    const auto qkv = random_values(c.rows() * c.qkv_width(), c.magnitude, c.dtype, c.seed);
    const auto dout = random_values(c.rows() * c.out_width(), 1, c.dtype, c.seed + 1);
    const NaiveAttention naive(c, qkv, dout);
    KernelAttention kernel(c, qkv, dout);
    EXPECT_LT(max_error(kernel.result.out, naive.result().out), largest);
    EXPECT_LT(mean_error(kernel.result.out, naive.result().out), mean);
    EXPECT_LT(max_error(by_heads(c, kernel.result.lse), naive.result().lse), 1e-5);
    EXPECT_LT(max_error(kernel.result.dqkv, naive.result().dqkv), largest);
    EXPECT_LT(mean_error(kernel.result.dqkv, naive.result().dqkv), mean);
    return std::move(kernel.result);
  }
};

TEST_P(CudnnAttentionOnDevice, AgreesWithNaiveLoopsInBf16) { expect_close(whole(GetParam(), DType::bf16), 1e-2, 6e-3); }

TEST_P(CudnnAttentionOnDevice, AgreesWithNaiveLoopsInFp16) {
  expect_close(whole(GetParam(), DType::f16), 1e-2 / 8, 6e-3 / 8);
}

/// Sequences of a call whose scores are too many are taken in parts, out of tensors that hold all rows.
TEST_P(CudnnAttentionOnDevice, PartsOfABatchGiveTheSame) {
  const AttentionCase c = whole(GetParam(), DType::bf16);
  if (c.lengths.size() == 1) GTEST_SKIP() << "one sequence has no parts";
  const AttentionResult at_once = expect_close(c, 1e-2, 6e-3);
  const int64_t before =
      std::exchange(cuda::max_cudnn_scores, c.shape.heads * c.shape.longest * c.shape.longest);  // of one
  const AttentionResult in_parts = expect_close(c, 1e-2, 6e-3);
  cuda::max_cudnn_scores = before;
  EXPECT_EQ(in_parts.out, at_once.out);
  EXPECT_LT(max_error(in_parts.dqkv, at_once.dqkv), 1e-2);
}

INSTANTIATE_TEST_SUITE_P(Cases, CudnnAttentionOnDevice, testing::ValuesIn(cases),
                         [](const auto& one) { return std::string(one.param.name); });

}  // namespace
}  // namespace llmtrain::test
