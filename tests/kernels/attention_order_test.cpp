// The bits of an attention row depend on its place in its sequence and on the rows before it, on nothing else: neither
// on later rows, nor on other segments, nor on whether the keys lie in a batch or in a cache.

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>

#include "harness/dtype_text.hpp"
#include "kernels/attention_cached.hpp"
#include "kernels/kernel_test.hpp"

namespace llmtrain {
namespace {

using test::Array;
using test::Bytes;

/// Tokens [begin, end) of a sequence.
struct Part {
  int64_t sequence, begin, end;
};

class AttentionOrder : public testing::TestWithParam<std::tuple<AttentionShape, DType>> {
 protected:
  static constexpr int64_t sequences = 3, capacity = 210;
  static constexpr int64_t lengths[] = {200, 9, 130};

  AttentionOrder() {
    for (uint64_t s = 1; s <= sequences; ++s) values_.push_back(test::random_values(lengths[0] * width(), s, 2.0));
  }
  AttentionShape shape() const { return std::get<0>(GetParam()); }
  DType dtype() const { return std::get<1>(GetParam()); }
  int64_t width() const { return (shape().heads + 2 * shape().kv_heads) * shape().head_dim; }

  /// qkv of all parts, one after the other.
  Array rows_of(const std::vector<Part>& parts) const {
    test::Values rows;
    for (const Part& p : parts) {
      const test::Values& all = values_[static_cast<size_t>(p.sequence)];
      rows.insert(rows.end(), all.begin() + p.begin * width(), all.begin() + p.end * width());
    }
    return {dtype(), {static_cast<int64_t>(rows.size()) / width(), width()}, rows};
  }
  /// The bytes of each part's rows.
  std::vector<Bytes> cut(const std::vector<Part>& parts, const Array& out) const {
    const Bytes all = out.bytes();
    const auto row =
        static_cast<std::ptrdiff_t>(shape().heads * shape().head_dim) * static_cast<std::ptrdiff_t>(size_of(dtype()));
    std::vector<Bytes> cut;
    for (auto from = all.begin(); const Part& p : parts) {
      cut.emplace_back(from, from + (p.end - p.begin) * row);
      from += (p.end - p.begin) * row;
    }
    return cut;
  }

  /// One segment for each part, which begins at 0.
  std::vector<Bytes> forward(const std::vector<Part>& parts) const {
    const Array qkv = rows_of(parts);
    const int64_t n = qkv.tensor().dim(0);
    test::Values borders = {0};
    for (const Part& p : parts) borders.push_back(borders.back() + static_cast<double>(p.end));
    const Array segments(DType::i32, {static_cast<int64_t>(borders.size())}, borders);
    const Array out(dtype(), {n, shape().heads * shape().head_dim}), lse(DType::f32, {shape().heads, n});
    const Array workspace(DType::u8, {attention_workspace_bytes(shape(), n)});
    Batch batch;
    batch.tokens = n;
    batch.segment_count = static_cast<int64_t>(parts.size());
    batch.segments = segments;
    attention_forward(out, lse, qkv, batch, shape(), {}, workspace, test::stream());
    return cut(parts, out);
  }
  /// Stores the tokens of all parts, which then attend, in the order given.
  std::vector<Bytes> cached(const Array& cache, const std::vector<Part>& parts, ProductRole role) const {
    const Array qkv = rows_of(parts);
    const int64_t n = qkv.tensor().dim(0);
    test::Values places, owners;
    for (const Part& p : parts) {
      for (int64_t i = p.begin; i < p.end; ++i) {
        places.push_back(static_cast<double>(i));
        owners.push_back(static_cast<double>(p.sequence));
      }
    }
    const Array positions(DType::i32, {n}, places), ids(DType::i64, {n}, owners);
    const Array out(dtype(), {n, shape().heads * shape().head_dim}), lse(DType::f32, {shape().heads, n});
    Batch batch;
    batch.tokens = n;
    batch.positions = positions;
    batch.sequence_ids = ids;
    cache_keys_values(cache, qkv, batch, shape(), test::stream());
    attention_cached(out, lse, qkv, cache, batch, shape(), role, test::stream());
    return cut(parts, out);
  }
  /// A cache of NaN: nothing may be read before it is stored.
  Array empty_cache() const {
    const int64_t row = 2 * shape().kv_heads * shape().head_dim;
    return {dtype(), {sequences, capacity, row}, test::Values(static_cast<size_t>(sequences * capacity * row), NAN)};
  }
  /// The bytes of a part, out of those of whole sequences.
  Bytes in(const std::vector<Bytes>& whole, const Part& p) const {
    const Bytes& all = whole[static_cast<size_t>(p.sequence)];
    const auto row = static_cast<std::ptrdiff_t>(all.size()) / lengths[p.sequence];
    return {all.begin() + p.begin * row, all.begin() + p.end * row};
  }
  const std::vector<Part> whole_ = {{0, 0, lengths[0]}, {1, 0, lengths[1]}, {2, 0, lengths[2]}};

 private:
  std::vector<test::Values> values_;  ///< qkv of each sequence
};

TEST_P(AttentionOrder, LaterRowsAndOtherSegmentsDoNotMatter) {
  const std::vector<Bytes> whole = forward(whole_);
  const std::vector<Part> others = {{2, 0, 64}, {0, 0, 65}, {2, 0, 129}, {1, 0, 8}, {0, 0, 63}, {0, 0, 1}, {0, 0, 135}};
  const std::vector<Bytes> found = forward(others);
  for (size_t i = 0; i < others.size(); ++i) EXPECT_TRUE(found[i] == in(whole, others[i])) << "part " << i;
}

TEST_P(AttentionOrder, TheCacheDoesNotMatter) {
  const std::vector<Bytes> whole = forward(whole_);
  // Chunks that begin and end inside blocks, beside single tokens of other sequences.
  const std::vector<std::vector<Part>> steps = {{{0, 0, 50}, {1, 0, 1}, {2, 0, 64}}, {{2, 64, 65}, {0, 50, 150}},
                                                {{1, 1, 9}, {0, 150, 151}},          {{0, 151, 193}, {2, 65, 129}},
                                                {{0, 193, 194}, {2, 129, 130}},      {{0, 194, 200}}};
  const Array cache = empty_cache(), other = empty_cache();
  int differing = 0;
  for (const auto& parts : steps) {
    const std::vector<Bytes> found = cached(cache, parts, ProductRole::prefill);
    const std::vector<Bytes> control = cached(other, parts, ProductRole::decoding);
    for (size_t i = 0; i < parts.size(); ++i) {
      EXPECT_TRUE(found[i] == in(whole, parts[i])) << parts[i].sequence << " from " << parts[i].begin;
      differing += control[i] != found[i] ? 1 : 0;
    }
  }
  if (device_memory_is_host()) {
    EXPECT_EQ(differing, 0) << "on the host decoding has the same order";
    EXPECT_FALSE(in(whole, steps[0][0]) == in(whole, steps[1][1])) << "control: other rows have other bits";
  } else if (dtype() == DType::f32) {  // in 16 bits a difference may be rounded away
    EXPECT_GT(differing, 0) << "the control: decoding has an order of its own";
  }
}

TEST_P(AttentionOrder, SingleTokensGiveTheBitsOfTheSequence) {
  const std::vector<Bytes> whole = forward(whole_);
  const Array cache = empty_cache();
  for (int64_t i = 0, end = 0; i < lengths[0]; i = end) {  // single near the borders of blocks
    end = i % 64 >= 4 && i % 64 < 61 ? i - i % 64 + 61 : i + 1;
    std::vector<Part> parts;
    for (int64_t s = sequences - 1; s >= 0; --s) {
      if (i < lengths[s]) parts.push_back({s, i, std::min(end, lengths[s])});
    }
    const std::vector<Bytes> found = cached(cache, parts, ProductRole::prefill);
    for (size_t p = 0; p < parts.size(); ++p) {
      ASSERT_TRUE(found[p] == in(whole, parts[p])) << "token " << i << " of " << parts[p].sequence;
    }
  }
}

// Heads of one, odd and large; grouped ones, more than fill a tile; windows shorter and longer than a block; caps.
INSTANTIATE_TEST_SUITE_P(
    Shapes, AttentionOrder,
    testing::Combine(testing::Values(AttentionShape{1, 1, 1, 0, 1.0F, 0}, AttentionShape{6, 2, 13, 0, 0.3F, 0},
                                     AttentionShape{4, 4, 16, 5, 0.25F, 0}, AttentionShape{4, 1, 10, 90, 0.3F, 0},
                                     AttentionShape{2, 1, 64, 64, 0.125F, 1.5F}, AttentionShape{3, 1, 140, 75, 0.1F, 0},
                                     AttentionShape{18, 1, 32, 0, 0.2F, 0}),
                     testing::Values(DType::f32, DType::bf16, DType::f16)));

}  // namespace
}  // namespace llmtrain
