// Batch-invariant products: the bits of a row do not depend on the other rows.

#include <optional>

#include "kernels/kernel_test.hpp"
#include "kernels/matmul.hpp"
#include "kernels/quantized_array.hpp"

namespace llmtrain {
namespace {

using test::Array;
using test::Bytes;

constexpr int64_t most = 131;
/// Few and many rows, whole tiles and borders; {rows, the first of them}.
constexpr struct {
  int64_t count, first;
} parts[] = {{1, 0}, {1, 77}, {3, 0}, {5, 0}, {16, 1}, {33, 98}, {65, 66}, {128, 3}};

struct Weights {
  int64_t outputs, inputs;
};
// Smaller than a tile, odd, several k-blocks along the inner dimension (also whole ones, which GPUs split), more
// outputs than inputs (operands are swapped).
constexpr Weights weights[] = {{61, 24}, {70, 33}, {100, 2083}, {60, 256}, {1003, 40}};

class Rows {
 public:
  Rows(const Weights& s, DType in, DType out, bool biased)
      : out_(out),
        x_(in, {most, s.inputs}, test::random_values(most * s.inputs, 1)),
        w_(in, {s.outputs, s.inputs}, test::random_values(s.outputs * s.inputs, 2)) {
    if (biased) bias_ = Array(in, {s.outputs}, test::random_values(s.outputs, 3));
  }

  /// Adds the product of an adapter.
  void add_low_rank(int64_t rank) {
    const DType in = x_.tensor().dtype;
    const int64_t outputs = w_.tensor().dim(0);
    left_ = Array(in, {most, rank}, test::random_values(most * rank, 4));
    right_ = Array(in, {outputs, rank}, test::random_values(outputs * rank, 5));
  }
  /// Uses a matrix of 4 bits instead.
  void quantize() {
    const Quantization format{QuantizedType::nf4, 64, true, 0};
    quantized_.emplace(format, std::vector<int64_t>{w_.tensor().dim(0)}, w_.tensor().dim(1), 6);
  }

  /// True if the bits of rows depend on others where they may: on a GPU in training. On the host all roles have one
  /// order, whose control is another row.
  bool control_differs() const {
    if (!device_memory_is_host()) return !differing(ProductRole::training, ProductRole::training).empty();
    EXPECT_EQ(differing(ProductRole::decoding, ProductRole::prefill), "");
    const bool one_path = x_.tensor().dtype == DType::f32;
    EXPECT_TRUE(!one_path || differing(ProductRole::training, ProductRole::prefill).empty());
    return run(ProductRole::decoding, 0, 1) != run(ProductRole::decoding, 1, 1);
  }
  Bytes run(ProductRole role, int64_t first, int64_t count) const {
    const Array y(out_, {count, w_.tensor().dim(0)});
    LowRank added;
    if (!left_.tensor().empty()) added = {left_.tensor().rows(first, count), right_};
    const Tensor& x = x_;
    const WeightMatrix w = quantized_ ? WeightMatrix(quantized_->matrix(), x.dtype) : WeightMatrix(w_);
    linear_forward(y, x.rows(first, count), w, bias_, test::stream(), role, added);
    return y.bytes();
  }
  /// Subsets whose rows differ from the same rows in the full product of a role.
  std::string differing(ProductRole role, ProductRole full) const {
    const Bytes all = run(full, 0, most);
    const auto row = static_cast<std::ptrdiff_t>(all.size()) / most;
    std::string found;
    for (const auto [count, first] : parts) {
      if (run(role, first, count) == Bytes(all.begin() + first * row, all.begin() + (first + count) * row)) continue;
      found += " " + std::to_string(count) + " rows from " + std::to_string(first) + ";";
    }
    return found;
  }

 private:
  DType out_;
  Array x_, w_, bias_, left_, right_;
  std::optional<test::QuantizedArray> quantized_;
};

class BatchInvariant : public testing::TestWithParam<DType> {};

TEST_P(BatchInvariant, ARowsBitsDoNotDependOnTheRowsBesideIt) {
  int differing = 0;
  for (const Weights& s : weights) {
    for (const DType out : {GetParam(), DType::f32}) {
      const Rows rows(s, GetParam(), out, out == GetParam());
      const std::string name = std::to_string(s.outputs) + " x " + std::to_string(s.inputs) + ":";
      EXPECT_EQ(name + rows.differing(ProductRole::prefill, ProductRole::prefill), name);
      EXPECT_EQ(name + rows.differing(ProductRole::decoding, ProductRole::decoding), name);
      differing += rows.control_differs() ? 1 : 0;
    }
  }
  EXPECT_GT(differing, 0) << "the control";
}

TEST_P(BatchInvariant, NorWithAdaptersOrQuantizedWeights) {
  int differing = 0;
  for (const Weights& s : weights) {
    for (const auto& [rank, quantized] : {std::pair<int64_t, bool>(5, false), {0, true}, {16, true}}) {
      Rows rows(s, GetParam(), DType::f32, false);
      if (rank > 0) rows.add_low_rank(rank);
      if (quantized) rows.quantize();
      const std::string name = std::to_string(s.outputs) + " x " + std::to_string(s.inputs) + ", rank " +
                               std::to_string(rank) + (quantized ? ", 4 bits:" : ":");
      EXPECT_EQ(name + rows.differing(ProductRole::prefill, ProductRole::prefill), name);
      EXPECT_EQ(name + rows.differing(ProductRole::decoding, ProductRole::decoding), name);
      differing += rows.control_differs() ? 1 : 0;
    }
  }
  EXPECT_GT(differing, 0) << "the control";
}

TEST_P(BatchInvariant, BitsDoNotDependOnThreads) {
  const Rows rows({100, 2083}, GetParam(), GetParam(), true);
  for (const ProductRole role : {ProductRole::prefill, ProductRole::decoding}) {
    test::expect_same_bits_for_threads([&](bool changed) { return rows.run(role, changed ? 1 : 0, 19); });
  }
}

INSTANTIATE_TEST_SUITE_P(Types, BatchInvariant, testing::Values(DType::f32, DType::bf16, DType::f16));

}  // namespace
}  // namespace llmtrain
