// Products of LLM.int8 compared with bitsandbytes' (tests/reference/quantization/make_int8_products.py).

#include <cmath>
#include <stdexcept>

#include "hf/weights/weight_index.hpp"
#include "kernels/kernel_test.hpp"
#include "kernels/matmul.hpp"

namespace llmtrain {
namespace {

using test::Array;
using test::Values;

class Int8Product : public testing::TestWithParam<DType> {
 protected:
  static constexpr int64_t rows = 7, inputs = 1100, outputs = 7;

  Int8Product() : codes(padded_codes()), scales(DType::f32, {outputs}, golden<float>("scales")) {
    chunks = DeviceBuffer(std::ssize(codes));
    copy_to_device(chunks.data(), codes.data(), chunks.bytes(), test::stream());
    test::stream().synchronize();
  }

  template <class T>
  Values golden(const std::string& name) const {
    const WeightIndex::Tensor* tensor = index.find(name);
    if (tensor == nullptr) throw std::runtime_error("no golden " + name);
    std::vector<T> values(static_cast<size_t>(tensor->end - tensor->begin) / sizeof(T));
    file.read(tensor->begin, tensor->end - tensor->begin, values.data());
    Values result;
    for (const T& value : values) result.push_back(static_cast<double>(static_cast<float>(value)));
    return result;
  }
  Values golden(const std::string& name, DType dtype) const {
    return dtype == DType::f32 ? golden<float>("f32." + name) : golden<f16>("f16." + name);
  }
  WeightMatrix weight(double threshold) const {
    QuantizedMatrix matrix{{QuantizedType::int8, 64, false, threshold}, outputs, inputs, 1};
    matrix.slices[0] = {0, outputs, 0, static_cast<const uint8_t*>(chunks.data()), scales.tensor().as<float>()};
    return {matrix, GetParam()};
  }
  Values product(double threshold, ProductRole role) const {
    const DType dtype = GetParam();
    const Array x(dtype, {rows, inputs}, golden<float>("x")), bias(dtype, {outputs}, golden<float>("bias"));
    const Array y(dtype, {rows, outputs});
    linear_forward(y, x, weight(threshold), bias, test::stream(), role);
    return y.values();
  }

 private:
  std::vector<int8_t> padded_codes() const {
    std::vector<int8_t> result(
        static_cast<size_t>((outputs * inputs + chunk_elements - 1) / chunk_elements * chunk_elements));
    const WeightIndex::Tensor* tensor = index.find("codes");
    if (tensor == nullptr) throw std::runtime_error("no golden codes");
    file.read(tensor->begin, tensor->end - tensor->begin, result.data());
    return result;
  }

  FolderHandle folder = FolderHandle::open("tests/reference/quantization");
  WeightIndex index = read_weight_file(folder, "int8_products.safetensors");
  FileHandle file = folder.open_to_read("int8_products.safetensors");
  std::vector<int8_t> codes;
  Array scales;
  DeviceBuffer chunks;
};

double largest_error(const Values& actual, const Values& expected) {
  double largest = 0;
  for (size_t i = 0; i < expected.size(); ++i) largest = std::fmax(largest, std::abs(actual[i] - expected[i]));
  return largest;
}

// Without outliers bit for bit. With them bitsandbytes rounds to the compute type once more before it adds their
// product.
TEST_P(Int8Product, IsThatOfBitsandbytes) {
  const double tolerance = 16 * test::rounding(GetParam());
  for (const auto& [role, name] :
       {std::pair(ProductRole::training, "y"), {ProductRole::prefill, "rows"}, {ProductRole::decoding, "rows"}}) {
    EXPECT_EQ(product(0, role), golden(std::string("0.") + name, GetParam())) << name;
    const Values expected = golden(std::string("6.") + name, GetParam());
    EXPECT_LT(largest_error(product(6, role), expected), tolerance) << name;
    EXPECT_GT(largest_error(product(6.01, role), expected), tolerance) << name << ": control, another threshold";
  }
}

TEST_P(Int8Product, OfARowDoesNotDependOnTheOthersOutsideTraining) {
  const Array x(GetParam(), {rows, inputs}, golden<float>("x")), y(GetParam(), {rows, outputs});
  for (const ProductRole role : {ProductRole::training, ProductRole::prefill, ProductRole::decoding}) {
    linear_forward(y, x, weight(6), Tensor(), test::stream(), role);
    bool same = true;
    for (int64_t row = 0; row < rows; ++row) {
      const Array alone(GetParam(), {1, outputs});
      linear_forward(alone, x.tensor().rows(row, 1), weight(6), Tensor(), test::stream(), role);
      const Values all = y.values(), one = alone.values();
      same &= std::equal(one.begin(), one.end(), all.begin() + row * outputs);
    }
    EXPECT_EQ(same, role != ProductRole::training);
  }
}

TEST_P(Int8Product, HasTheGradientOfBitsandbytes) {
  const Array dy(GetParam(), {rows, outputs}, golden<float>("dy")), dx(GetParam(), {rows, inputs});
  linear_backward_input(dx, dy, weight(6), false, test::stream());
  EXPECT_LT(largest_error(dx.values(), golden("6.dx", GetParam())), 4 * test::rounding(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(All, Int8Product, testing::Values(DType::f32, DType::f16));

}  // namespace
}  // namespace llmtrain
