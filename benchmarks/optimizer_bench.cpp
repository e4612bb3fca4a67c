// The optimizer's step (norm of the gradients, then AdamW with clipping and rounding to weights) compared with the
// memory bandwidth: the triad of STREAM over arrays of the same size, in turn. The norm is the only exact sum of a step
// over all parameters, independent of the order of threads and ranks; a plain sum beside it shows the cost.
//
// usage: optimizer_bench [million parameters (124)] [rounds (7)]
//
// Bytes of a step per parameter: 4 for the norm; 12 read and written as master and moments, 4 of the gradient read and
// 2 of the bf16 weight written (none with fp32 weights, which are the master).

#include <fmt/core.h>
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <vector>

#include "kernels/adamw.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/reduce.hpp"

namespace llmtrain {
namespace {

double seconds(const std::function<void()>& call) {
  const auto begin = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// fp32 [n] of normal random numbers, times scale.
void fill(const Tensor& t, double scale, uint64_t seed, Stream& stream) {
  fill_normal(t, scale, random_key(seed, RandomPurpose::initialization, 0), 0, stream);
}

void run(int64_t n, int rounds) {
  Stream stream;
  const DeviceBuffer master_memory(4 * n), m_memory(4 * n), v_memory(4 * n), gradient_memory(4 * n),
      weights_memory(2 * n);
  const Tensor master(master_memory.data(), DType::f32, {n}), m(m_memory.data(), DType::f32, {n}),
      v(v_memory.data(), DType::f32, {n}), gradient(gradient_memory.data(), DType::f32, {n}),
      weights(weights_memory.data(), DType::bf16, {n});
  fill(master, 0.02, 1, stream);
  fill(gradient, 1e-3, 2, stream);
  std::fill_n(m.as<float>(), n, 0.0F);
  std::fill_n(v.as<float>(), n, 1e-6F);
  AdamwStep step{.learning_rate = 1e-4, .weight_decay = 0.1};

  const auto triad = [&] {  // like the step, it reads and writes existing values
    float* a = m.as<float>();
    const float *b = master.as<float>(), *c = gradient.as<float>();
#pragma omp parallel for simd schedule(static)
    for (int64_t i = 0; i < n; ++i) a[i] = b[i] + 1e-3F * c[i];
  };
  const auto norm = [&] {
    ExactSum squares;
    sum_of_squares(squares, gradient, stream);
    LLMTRAIN_CHECK(squares.value() > 0, "the norm is wrong");
  };
  const auto plain_norm = [&] {  // the order of additions depends on the threads
    double squares = 0;
    const float* g = gradient.as<float>();
#pragma omp parallel for simd schedule(static) reduction(+ : squares)
    for (int64_t i = 0; i < n; ++i) squares += static_cast<double>(g[i]) * g[i];
    LLMTRAIN_CHECK(squares > 0, "the norm is wrong");
  };
  const auto update = [&](const Tensor& to) {
    ++step.step;
    adamw_update(master, m, v, gradient, to, step, stream);
  };
  struct Way {
    const char* name;
    double bytes;
    std::function<void()> call;
    std::vector<double> rates, ratios;
  };
  std::vector<Way> ways = {{"norm of the gradients, exact", 4, norm, {}, {}},
                           {"the same as a plain sum of doubles", 4, plain_norm, {}, {}},
                           {"AdamW, bf16 weights", 30, [&] { update(weights); }, {}, {}},
                           {"AdamW, fp32 weights", 28, [&] { update({}); }, {}, {}},
                           {"norm and AdamW, bf16 weights", 34, [&] { norm(), update(weights); }, {}, {}}};
  std::vector<double> limits;
  const auto count = static_cast<double>(n);
  triad();
  for (int round = 0; round < rounds; ++round) {
    const double limit = 12 * count / seconds(triad);
    limits.push_back(limit);
    for (Way& way : ways) {
      way.rates.push_back(way.bytes * count / seconds(way.call));
      way.ratios.push_back(way.rates.back() / limit);
    }
  }
  fmt::print("{}, {} million parameters\n\n| what | GB/s | of the triad's |\n|---|---|---|\n", device_description(),
             n / 1000000);
  fmt::print("| triad of STREAM | {:.1f} | |\n", median(limits) / 1e9);
  for (const Way& way : ways) {
    fmt::print("| {} | {:.1f} | {:.2f} |\n", way.name, median(way.rates) / 1e9, median(way.ratios));
  }
}

}  // namespace
}  // namespace llmtrain

int main(int argc, char** argv) {
  using namespace llmtrain;
  const int64_t millions = argc > 1 ? std::atoll(argv[1]) : 124;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 7;
  if (millions < 1 || rounds < 1) {
    fmt::print(stderr, "usage: optimizer_bench [million parameters] [rounds]\n");
    return 64;
  }
  const DeviceRuntime runtime(0, omp_get_max_threads());
  run(millions * 1000000, rounds);
}
