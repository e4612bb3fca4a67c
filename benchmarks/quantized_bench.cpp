// Products with quantised weights (kernels/quantized_matrix.hpp) beside those with dense ones: decoding of one row, and
// forward products and input gradients of 512 and 4,096 rows.
//
// usage: quantized_bench [rounds]   (5; threads: OMP_NUM_THREADS)
//
// Storages alternate in every round; the table has the fastest of all rounds. Decoding goes over so many equal matrices
// that no cache holds them. Times of one thread are those of the processor, which other jobs disturb less. LLM.int8 has
// its threshold of 6, and one column of inputs in a thousand exceeds it.

#include <fmt/core.h>
#include <omp.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <limits>
#include <string_view>
#include <vector>

#include "core/philox.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/matmul.hpp"

namespace llmtrain {
namespace {

constexpr int64_t columns = 4096, outputs = 4096;
constexpr int64_t uncached_bytes = int64_t{1} << 30;

/// One weight in device memory: dense, or of random codes whose scales are 1.
class Weight {
 public:
  Weight(DType dtype, Stream& stream) : memory_(outputs * columns * static_cast<int64_t>(size_of(dtype))) {
    const Tensor dense(memory_.data(), dtype, {outputs, columns});
    const DeviceBuffer random(dense.numel() * 4);
    const Tensor wide(random.data(), DType::f32, {dense.numel()});
    fill_normal(wide, 1.0, random_key(7, RandomPurpose::initialization, 1), 0, stream);
    cast(dense.reshaped({dense.numel()}), wide, stream);
    view_ = {dense};
  }
  Weight(const Quantization& format, DType dtype, Stream& stream) {
    const int64_t chunks = outputs * columns / chunk_elements;
    std::vector<uint8_t> records(static_cast<size_t>(chunks * chunk_bytes(format)));
    for (size_t i = 0; i < records.size(); ++i) records[i] = static_cast<uint8_t>(i * 0x9E3779B97F4A7C15u >> 56);
    const std::vector<float> table(static_cast<size_t>(table_values(format, outputs, columns)), 1.0f);
    const auto table_bytes = static_cast<int64_t>(table.size() * sizeof(float));
    memory_ = DeviceBuffer(static_cast<int64_t>(records.size()));
    table_ = DeviceBuffer(table_bytes);
    copy_to_device(memory_.data(), records.data(), static_cast<int64_t>(records.size()), stream);
    copy_to_device(table_.data(), table.data(), table_bytes, stream);
    QuantizedMatrix matrix{format, outputs, columns, 1};
    matrix.slices[0] = {0, outputs, 0, static_cast<const uint8_t*>(memory_.data()),
                        static_cast<const float*>(table_.data())};
    view_ = {{matrix, dtype}};
  }
  const WeightMatrix& view() const { return view_.front(); }

 private:
  DeviceBuffer memory_, table_;
  std::vector<WeightMatrix> view_;
};

struct Storage {
  std::string_view name;
  std::vector<Weight> weights;
};

std::vector<Storage> storages(DType dtype, bool decoding, Stream& stream) {
  std::vector<Storage> all(3);
  const Quantization nf4{QuantizedType::nf4, 64, true, 0}, int8{QuantizedType::int8, 64, false, 6};
  for (size_t i = 0; i < all.size(); ++i) {
    all[i].name = i == 0 ? name_of(dtype) : i == 1 ? "nf4" : "int8";
    int64_t bytes = 0;
    while (bytes == 0 || (decoding && bytes < uncached_bytes)) {
      i == 0 ? all[i].weights.emplace_back(dtype, stream)
             : all[i].weights.emplace_back(i == 1 ? nf4 : int8, dtype, stream);
      bytes += all[i].weights.back().view().bytes();
    }
  }
  return all;
}

double seconds() {
  if (omp_get_max_threads() == 1) return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void run_case(DType dtype, int64_t rows, bool forward, int rounds, Stream& stream) {
  const ProductRole role = rows == 1 ? ProductRole::decoding : ProductRole::training;
  const auto element = static_cast<int64_t>(size_of(dtype));
  const DeviceBuffer x_memory(rows * columns * element), y_memory(rows * outputs * element), random(rows * columns * 4);
  const Tensor x(x_memory.data(), dtype, {rows, columns}), y(y_memory.data(), dtype, {rows, outputs});
  std::vector<float> values(static_cast<size_t>(rows * columns));
  for (size_t i = 0; i < values.size(); ++i) {
    const bool outlier = i % columns % 1000 == 999;
    values[i] = static_cast<float>(random_uniform(random_bits(5, 1, i)) * 2 - 1) * (outlier ? 20.0f : 1.0f);
  }
  copy_to_device(random.data(), values.data(), rows * columns * 4, stream);
  cast(x.reshaped({x.numel()}), Tensor(random.data(), DType::f32, {x.numel()}), stream);
  std::vector<Storage> all = storages(dtype, rows == 1, stream);
  std::vector<double> best(all.size(), std::numeric_limits<double>::max());
  for (int round = -1; round < rounds; ++round) {  // the first one creates kernels
    for (size_t i = 0; i < all.size(); ++i) {
      const double begin = seconds();
      for (const Weight& w : all[i].weights) {
        if (forward) {
          linear_forward(y, x, w.view(), {}, stream, role);
        } else {
          linear_backward_input(y, x, w.view(), false, stream);
        }
      }
      const double time = seconds() - begin;
      if (round >= 0) best[i] = std::min(best[i], time / static_cast<double>(all[i].weights.size()));
    }
  }
  fmt::print("{:9} {:5} rows ", rows == 1 ? "decode" : forward ? "forward" : "dx", rows);
  for (size_t i = 0; i < all.size(); ++i) {
    fmt::print("  {:>5} {:9.2f} ms", all[i].name, best[i] * 1e3);
    if (i > 0) fmt::print(" ({:.2f})", best[i] / best[0]);
  }
  fmt::print("\n");
  std::fflush(stdout);
}

}  // namespace
}  // namespace llmtrain

int main(int argc, char** argv) {
  using namespace llmtrain;
  int rounds = 5;
  const std::string_view text = argc > 1 ? argv[1] : "5";
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), rounds);
  if (argc > 2 || error != std::errc() || end != text.data() + text.size() || rounds < 1) {
    fmt::print(stderr, "usage: quantized_bench [rounds]\n");
    return 64;
  }
  const DeviceRuntime runtime(0, omp_get_max_threads());
  fmt::print("{}; weights {} x {}; in brackets the time over that of the dense weights\n", device_description(),
             outputs, columns);
  Stream stream;
  for (const DType dtype : {DType::bf16, DType::f32}) {
    run_case(dtype, 1, true, rounds, stream);
    for (const int64_t rows : {512, 4096}) {
      for (const bool forward : {true, false}) run_case(dtype, rows, forward, rounds, stream);
    }
  }
}
