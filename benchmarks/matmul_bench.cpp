// Matrix products of linear layers: kernels/matmul.hpp against one oneDNN matmul primitive over all threads, and in
// bf16 the native product against the one of widened operands (kernels/host/product_path.hpp).
// usage: matmul_bench [threads ...]   (default: 1 and OMP_NUM_THREADS)

#include <fmt/core.h>
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <oneapi/dnnl/dnnl.hpp>
#include <unordered_map>
#include <vector>

#include "core/philox.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/host/product_path.hpp"
#include "kernels/matmul.hpp"

namespace llmtrain {
namespace {

using Clock = std::chrono::steady_clock;
using dnnl::memory;
using FormatTag = memory::format_tag;

enum class Form { forward, backward_input, backward_weight };

/// C[m, n] = A[m, k] B[k, n]; forward has B stored transposed, backward_weight A.
struct Case {
  const char* name;
  Form form;
  int64_t m, n, k;
  bool fp32_result = false;
};

constexpr Case cases[] = {
    {"forward 4096x2304x768", Form::forward, 4096, 2304, 768},
    {"forward 4096x768x3072", Form::forward, 4096, 768, 3072},
    {"dx 4096x768x2304", Form::backward_input, 4096, 768, 2304},
    {"dW 768x768x1024", Form::backward_weight, 768, 768, 1024},
    {"dW 3072x768x1024", Form::backward_weight, 3072, 768, 1024},
    {"dW 768x3072x1024", Form::backward_weight, 768, 3072, 1024},
    {"dW 2048x2048x2048", Form::backward_weight, 2048, 2048, 2048},
    {"dW 2304x768x4096", Form::backward_weight, 2304, 768, 4096},
    {"dW 768x3072x4096", Form::backward_weight, 768, 3072, 4096},
    {"head 256x50304x768", Form::forward, 256, 50304, 768, true},
    {"head dx 512x768x50257", Form::backward_input, 512, 768, 50257},
    {"head dx 1024x768x50304", Form::backward_input, 1024, 768, 50304},
    {"head dW 50304x768x1024", Form::backward_weight, 50304, 768, 1024},
    {"small 768x384x128", Form::forward, 768, 384, 128},
    {"small dW 384x128x768", Form::backward_weight, 384, 128, 768},
    {"LoRA 4096x16x768", Form::forward, 4096, 16, 768},
    {"decode 1x2304x768", Form::forward, 1, 2304, 768},
    {"decode 8x2304x768", Form::forward, 8, 2304, 768},
};

/// One side of the comparison: seconds of a call.
template <class F>
double seconds(const F& call) {
  const auto begin = Clock::now();
  call();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

class Stock {
 public:
  Stock(const Case& c, const Tensor& a, const Tensor& b, const Tensor& result)
      : engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {
    const auto type = [](const Tensor& t) {
      return t.dtype == DType::bf16 ? memory::data_type::bf16 : memory::data_type::f32;
    };
    const memory::desc da({c.m, c.k}, type(a), c.form == Form::backward_weight ? FormatTag::ba : FormatTag::ab);
    const memory::desc db({c.k, c.n}, type(b), c.form == Form::forward ? FormatTag::ba : FormatTag::ab);
    const memory::desc dc({c.m, c.n}, type(result), FormatTag::ab);
    primitive_ = dnnl::matmul(dnnl::matmul::primitive_desc(engine_, da, db, dc));
    arguments_ = {{DNNL_ARG_SRC, memory(da, engine_, a.data)},
                  {DNNL_ARG_WEIGHTS, memory(db, engine_, b.data)},
                  {DNNL_ARG_DST, memory(dc, engine_, result.data)}};
  }
  void run() { primitive_.execute(stream_, arguments_); }

 private:
  dnnl::engine engine_;
  dnnl::stream stream_;
  dnnl::matmul primitive_;
  std::unordered_map<int, memory> arguments_;
};

void run_case(const Case& c, DType dtype, Stream& stream) {
  const auto element = static_cast<int64_t>(size_of(dtype));
  const bool gradient = c.form == Form::backward_weight;
  const DType out_type = gradient || c.fp32_result ? DType::f32 : dtype;
  const DeviceBuffer a_memory(c.m * c.k * element), b_memory(c.k * c.n * element);
  const DeviceBuffer c_memory(c.m * c.n * static_cast<int64_t>(size_of(out_type)));
  const Tensor a = gradient ? Tensor(a_memory.data(), dtype, {c.k, c.m}) : Tensor(a_memory.data(), dtype, {c.m, c.k});
  const Tensor b =
      c.form == Form::forward ? Tensor(b_memory.data(), dtype, {c.n, c.k}) : Tensor(b_memory.data(), dtype, {c.k, c.n});
  const Tensor result(c_memory.data(), out_type, {c.m, c.n});
  for (const Tensor& t : {a, b}) {
    const DeviceBuffer random(t.numel() * 4);
    const Tensor wide(random.data(), DType::f32, {t.numel()});
    fill_normal(wide, 1.0, random_key(7, RandomPurpose::initialization, static_cast<uint64_t>(t.numel())), 0, stream);
    cast(t.reshaped({t.numel()}), wide, stream);
  }
  Stock stock(c, a, b, result);
  const auto ours = [&] {
    if (c.form == Form::forward) linear_forward(result, a, b, {}, stream);
    if (c.form == Form::backward_input) linear_backward_input(result, a, b, false, stream);
    if (gradient) linear_backward_weight(result, a, b, false, stream);
  };
  ours();
  stock.run();
  if (dtype == DType::bf16) {  // kernels are made in the first call
    for (const auto path : {host::ProductPath::native, host::ProductPath::wide}) {
      const host::ForcedProductPath forced(path);
      ours();
    }
  }
  const double flops = 2.0 * static_cast<double>(c.m) * static_cast<double>(c.n) * static_cast<double>(c.k);
  const int rounds = std::clamp(static_cast<int>(2e10 / flops), 3, 500);
  std::vector<double> own, other, native, wide;
  const auto on_path = [&](host::ProductPath forced) {
    const host::ForcedProductPath path(forced);
    return seconds(ours);
  };
  for (int i = 0; i < rounds; ++i) {  // alternating, so that both sides see the same machine
    own.push_back(seconds(ours));
    other.push_back(seconds([&] { stock.run(); }));
    if (dtype != DType::bf16) continue;
    native.push_back(on_path(host::ProductPath::native));
    wide.push_back(on_path(host::ProductPath::wide));
  }
  const auto median = [](std::vector<double>& v) {
    std::nth_element(v.begin(), v.begin() + static_cast<std::ptrdiff_t>(v.size() / 2), v.end());
    return v[v.size() / 2];
  };
  const double t_own = median(own), t_other = median(other);
  fmt::print("{:24} {:5} {} threads {:9.1f} us {:8.1f} GFLOP/s   oneDNN {:8.1f} GFLOP/s   ratio {:.2f}", c.name,
             name_of(dtype), omp_get_max_threads(), t_own * 1e6, flops / t_own * 1e-9, flops / t_other * 1e-9,
             t_other / t_own);
  if (dtype == DType::bf16) fmt::print("   native / wide {:.2f}", median(wide) / median(native));
  fmt::print("\n");
  std::fflush(stdout);
}

}  // namespace
}  // namespace llmtrain

int main(int argc, char** argv) {
  using namespace llmtrain;
  std::vector<int> threads;
  for (int i = 1; i < argc; ++i) {
    threads.push_back(std::atoi(argv[i]));
    if (threads.back() < 1) {
      fmt::print(stderr, "usage: matmul_bench [threads]...   (1 and all of them)\n");
      return 64;
    }
  }
  if (threads.empty()) threads = {1, omp_get_max_threads()};
  const DeviceRuntime runtime(0, omp_get_max_threads());
  Stream stream;
  fmt::print("{}\n", device_description());
  for (const int t : threads) {
    omp_set_num_threads(t);
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (const Case& c : cases) run_case(c, dtype, stream);
    }
  }
}
