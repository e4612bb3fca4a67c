#include <gtest/gtest.h>

#include <vector>

#include "kernels/logprob_rows.hpp"

namespace llmtrain::test {
namespace {

/// The logits of tokens [first, first + count) with three columns of padding.
Rows block_of(const Rows& x, int64_t first, int64_t count) {
  Rows block = x;
  block.vocabulary = count;
  block.columns = count + 3;
  block.logits.clear();
  for (int64_t r = 0; r < x.rows; ++r) {
    const auto begin = x.logits.begin() + r * x.columns + first;
    block.logits.insert(block.logits.end(), begin, begin + count);
    block.logits.insert(block.logits.end(), 3, 1e30);
  }
  return block;
}

/// Statistics and gradients from three blocks, of which the last has no token, beside those of the whole.
TEST(LogprobBlocks, AreTheWhole) {
  const Rows x(9, 257, 257);
  const int64_t cuts[] = {0, 130, 257, 257};
  const int64_t bytes = x.rows * static_cast<int64_t>(sizeof(LogprobPart));
  Kernel whole(x);
  whole.forward(257);
  const DeviceTensor dwhole(DType::f32, {x.rows, 257}), parts(DType::u8, {3, bytes});
  whole.backward(dwhole.tensor, whole.cotangents(), 257, 5);
  Kernel sum(x);
  std::vector<Kernel> blocks;
  for (int64_t i = 0; i < 3; ++i) {
    const TokenRange tokens(cuts[i], cuts[i + 1] - cuts[i], 257);
    blocks.emplace_back(block_of(x, tokens.first, tokens.count));
    logprob_parts(parts.tensor.rows(i, 1), blocks.back().logits.tensor, sum.targets.tensor, tokens, stream());
  }
  add_logprob_parts(sum.statistics(), parts.tensor, sum.targets.tensor, 257, stream());
  EXPECT_EQ(sum.argmax_values(), whole.argmax_values());
  for (const auto& [a, b] : {std::pair(&sum.logp, &whole.logp),
                             {&sum.lse, &whole.lse},
                             {&sum.entropy, &whole.entropy},
                             {&sum.uniform, &whole.uniform}}) {
    const Values expected = b->values();
    for (size_t r = 0; r < expected.size(); ++r) EXPECT_NEAR(a->values()[r], expected[r], 1e-6);
  }
  const Values expected = dwhole.values();
  for (size_t i = 0; i < 3; ++i) {
    const int64_t first = cuts[i], count = cuts[i + 1] - first;
    const DeviceTensor d(DType::f32, {x.rows, count + 3});
    logprob_backward(d.tensor, blocks[i].logits.tensor, sum.targets.tensor, sum.statistics(), sum.cotangents(),
                     {first, count, 257}, 5, stream());
    const Values own = d.values();
    for (int64_t r = 0; r < x.rows; ++r) {
      for (int64_t c = 0; c < count + 3; ++c) {
        const double right = c < count ? expected[static_cast<size_t>(r * 257 + first + c)] : 0;
        EXPECT_NEAR(own[static_cast<size_t>(r * (count + 3) + c)], right, 1e-6) << r << ' ' << first + c;
      }
    }
  }
}

/// Words of kept tokens are read from any token on.
TEST(LogprobBlocks, KeepTheirTokens) {
  const Rows x(4, 100, 100);
  const Kernel whole(x);
  std::vector<int32_t> words(4 * 4);
  for (size_t i = 0; i < words.size(); ++i) words[i] = static_cast<int32_t>(0x9E3779B9U * (i + 1));
  DeviceTensor kept(DType::i32, {4, 4});
  kept.set(words.data());
  const Tensor bits(kept.tensor.data, DType::u32, {4, 4});
  temper_logits(whole.logits.tensor, 0.5f, bits, 100, stream());
  const Values expected = whole.logits.values();
  const Kernel block(block_of(x, 27, 50));
  temper_logits(block.logits.tensor, 0.5f, bits, {27, 50, 100}, stream());
  const Values own = block.logits.values();
  for (size_t r = 0; r < 4; ++r) {
    for (size_t c = 0; c < 50; ++c) EXPECT_EQ(own[r * 53 + c], expected[r * 100 + 27 + c]) << r << ' ' << c;
  }
}

}  // namespace
}  // namespace llmtrain::test
