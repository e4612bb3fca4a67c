// Matrix products of linear layers: kernels/matmul.hpp against one oneDNN matmul primitive over all threads, and in
// bf16 the native product against the one of widened operands (kernels/host/product/product_path.hpp).
//
// usage: matmul_bench [threads | fp32 | bf16 | product]...
//
// Threads: numbers, else 1 and OMP_NUM_THREADS. Products: words of their names ("dW", "head dW", "4096x768x3072"), else
// all. The limit is measured before and after them: independent multiply-adds of registers, the fastest of several
// tries. No program can be faster, and one that also loads and stores is slower. bf16 operands may be widened, so their
// limit is that of the fastest instructions of any type. ONEDNN_MAX_CPU_ISA lowers it with the products.

#include <fmt/core.h>
#include <omp.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <oneapi/dnnl/dnnl.hpp>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "arithmetic_limit.hpp"
#include "core/philox.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/host/product/product_path.hpp"
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

/// One side of the comparison: seconds per call.
template <class F>
double seconds(const F& call) {
  const auto begin = Clock::now();
  call();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// GFLOP/s, by medians; 0: oneDNN has no such product here (bf16 with AVX2).
struct Rates {
  double own, other;
};

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
    const dnnl::matmul::primitive_desc description(engine_, da, db, dc, dnnl::primitive_attr(), true);
    if (description.get(true) == nullptr) return;
    primitive_ = dnnl::matmul(description);
    arguments_ = {{DNNL_ARG_SRC, memory(da, engine_, a.data)},
                  {DNNL_ARG_WEIGHTS, memory(db, engine_, b.data)},
                  {DNNL_ARG_DST, memory(dc, engine_, result.data)}};
  }
  bool exists() const { return primitive_.get(true) != nullptr; }
  void run() { primitive_.execute(stream_, arguments_); }

 private:
  dnnl::engine engine_;
  dnnl::stream stream_;
  dnnl::matmul primitive_;
  std::unordered_map<int, memory> arguments_;
};

Rates run_case(const Case& c, DType dtype, double limit, Stream& stream) {
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
  if (stock.exists()) stock.run();
  if (dtype == DType::bf16) {  // the first call creates the kernels
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
    if (stock.exists()) other.push_back(seconds([&] { stock.run(); }));
    if (dtype != DType::bf16) continue;
    native.push_back(on_path(host::ProductPath::native));
    wide.push_back(on_path(host::ProductPath::wide));
  }
  const auto median = [](std::vector<double>& v) {
    std::nth_element(v.begin(), v.begin() + static_cast<std::ptrdiff_t>(v.size() / 2), v.end());
    return v[v.size() / 2];
  };
  const auto rate = [&](std::vector<double>& times) { return times.empty() ? 0 : flops / median(times) * 1e-9; };
  const Rates rates{rate(own), rate(other)};
  fmt::print("{:24} {:5} {} threads {:9.1f} us {:8.1f} GFLOP/s", c.name, name_of(dtype), omp_get_max_threads(),
             median(own) * 1e6, rates.own);
  if (stock.exists()) fmt::print("   oneDNN {:8.1f} GFLOP/s   ratio {:.2f}", rates.other, rates.own / rates.other);
  if (limit > 0) fmt::print("   of limit {:.2f}", rates.own / limit);
  if (dtype == DType::bf16) fmt::print("   native / wide {:.2f}", median(wide) / median(native));
  fmt::print("\n");
  std::fflush(stdout);
  return rates;
}

/// The selection in the arguments.
struct Choice {
  std::vector<int> threads;
  std::vector<DType> types;
  std::vector<Case> products;
};

std::optional<Choice> choice_of(const std::vector<std::string>& arguments) {
  Choice choice;
  std::vector<std::string> names;
  for (const std::string& argument : arguments) {
    int number = 0;
    const auto [end, error] = std::from_chars(argument.data(), argument.data() + argument.size(), number);
    if (error == std::errc() && end == argument.data() + argument.size()) {
      if (number < 1) return {};
      choice.threads.push_back(number);
    } else if (argument == "fp32" || argument == "bf16") {
      choice.types.push_back(argument == "fp32" ? DType::f32 : DType::bf16);
    } else {
      names.push_back(" " + argument + " ");
    }
  }
  const auto is_of = [](const Case& c, const std::string& name) {
    return (" " + std::string(c.name) + " ").find(name) != std::string::npos;
  };
  for (const std::string& name : names) {
    if (std::ranges::none_of(cases, [&](const Case& c) { return is_of(c, name); })) return {};
  }
  for (const Case& c : cases) {
    if (names.empty() || std::ranges::any_of(names, [&](const std::string& name) { return is_of(c, name); })) {
      choice.products.push_back(c);
    }
  }
  if (choice.threads.empty()) choice.threads = {1, omp_get_max_threads()};
  if (choice.types.empty()) choice.types = {DType::f32, DType::bf16};
  return choice;
}

void run(const Choice& choice) {
  struct Best {
    DType type;
    int threads;
    Rates rates;
    const char *own, *other;  ///< products
  };
  std::vector<Best> bests;
  Stream stream;
  Limits limits;
  limits.measure(choice.threads, choice.types);
  for (const int threads : choice.threads) {
    omp_set_num_threads(threads);
    for (const DType type : choice.types) {
      Best best{type, threads, {}, "", ""};
      for (const Case& c : choice.products) {
        const Rates rates = run_case(c, type, limits.of(type, threads), stream);
        if (rates.own > best.rates.own) best.own = c.name;
        if (rates.other > best.rates.other) best.other = c.name;
        best.rates = {std::max(rates.own, best.rates.own), std::max(rates.other, best.rates.other)};
      }
      bests.push_back(best);
    }
  }
  fmt::print("\nThe limit again, and the best products, GFLOP/s (of the higher limit):\n");
  limits.measure(choice.threads, choice.types);
  for (const Best& best : bests) {
    const double limit = limits.of(best.type, best.threads);
    const auto text = [&](double rate, const char* product) {
      return fmt::format("{:8.1f}{}, {}", rate, limit > 0 ? fmt::format(" ({:.2f})", rate / limit) : "", product);
    };
    fmt::print("{:5} {} threads   llmtrain {}{}\n", name_of(best.type), best.threads, text(best.rates.own, best.own),
               best.rates.other > 0 ? ";   oneDNN " + text(best.rates.other, best.other) : "");
  }
}

}  // namespace
}  // namespace llmtrain

int main(int argc, char** argv) {
  using namespace llmtrain;
  const std::optional<Choice> choice = choice_of({argv + 1, argv + argc});
  if (!choice) {
    fmt::print(stderr,
               "usage: matmul_bench [threads | fp32 | bf16 | product]...   (1 thread and all of them; both types; all "
               "products, which words of their names choose: \"head dW\")\n");
    return 64;
  }
  const DeviceRuntime runtime(0, omp_get_max_threads());
  fmt::print("{}\n", device_description());
  run(*choice);
}
