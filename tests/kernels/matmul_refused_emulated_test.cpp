// Batch-invariant products whose algorithm cuBLASLt refuses for fewer rows than it was chosen for.

#include "emulator/limits.hpp"
#include "kernels/kernel_test.hpp"
#include "kernels/matmul.hpp"

namespace llmtrain {
namespace {

using test::Array;
using test::Bytes;

/// A linear layer of its own shape, since algorithms are chosen once for a shape.
class Layer {
 public:
  Layer(int64_t outputs, DType in, DType out, int64_t rank)
      : x_(in, {most, inputs}, test::random_values(most * inputs, 1)),
        w_(in, {outputs, inputs}, test::random_values(outputs * inputs, 2)),
        bias_(in, {outputs}, test::random_values(outputs, 3)),
        left_(in, {most, rank}, test::random_values(most * rank, 4)),
        right_(in, {outputs, rank}, test::random_values(outputs * rank, 5)),
        out_(out) {}

  /// First rows of the result, of which `count` are computed.
  Bytes first_row(ProductRole role, int64_t count) const {
    const Array y(out_, {count, w_.tensor().dim(0)});
    const Tensor& x = x_;
    const LowRank added = right_.tensor().dim(1) > 1 ? LowRank{left_.tensor().rows(0, count), right_} : LowRank();
    linear_forward(y, x.rows(0, count), w_, bias_, test::stream(), role, added);
    Bytes bytes = y.bytes();
    bytes.resize(bytes.size() / static_cast<size_t>(count));
    return bytes;
  }

  static constexpr int64_t most = 1024, inputs = 128;  // inputs that may be split

 private:
  Array x_, w_, bias_, left_, right_;
  DType out_;
};

TEST(RefusedAlgorithm, RowsHaveTheBitsOfTheAlgorithmForAllRows) {
  int64_t outputs = 20;
  int differing = 0;
  const int64_t before = emulator::refusals();
  for (int64_t seed = 0; seed < 4; ++seed) {
    const emulator::ScopedSetting refusals("LLMTRAIN_EMULATOR_REFUSALS", seed);
    for (const auto& [in, out, rank] : {std::tuple(DType::bf16, DType::bf16, int64_t{1}),
                                        {DType::bf16, DType::f32, int64_t{4}},
                                        {DType::f32, DType::f32, int64_t{4}}}) {
      const Layer layer(++outputs, in, out, rank);
      const Bytes decoded = layer.first_row(ProductRole::decoding, 64);
      for (const int64_t rows : {1, 7, 63}) {
        EXPECT_EQ(layer.first_row(ProductRole::decoding, rows), decoded) << "seed " << seed << ", rows " << rows;
      }
      const Bytes filled = layer.first_row(ProductRole::prefill, Layer::most);
      for (const int64_t rows : {1, 7, 65}) {
        EXPECT_EQ(layer.first_row(ProductRole::prefill, rows), filled) << "seed " << seed << ", rows " << rows;
      }
      differing += layer.first_row(ProductRole::training, 7) == layer.first_row(ProductRole::training, 64) ? 0 : 1;
    }
  }
  EXPECT_GE(emulator::refusals() - before, 20);
  EXPECT_GT(differing, 0) << "the control: algorithms for few rows add in another order";
}

}  // namespace
}  // namespace llmtrain
