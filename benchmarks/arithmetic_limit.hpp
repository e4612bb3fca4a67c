#pragma once
// Measures the peak rate of multiplications and additions of this processor: independent instructions on registers,
// without loads or dependencies. No program can be faster.

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <vector>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "core/clock.hpp"
#include "core/dtype.hpp"
#include "core/error.hpp"
#include "device/processor.hpp"

namespace llmtrain {

#if defined(__x86_64__)

// The number of independent sums covers the latency: 4 to 8 cycles, at most two instructions per cycle. They have
// different initial values, or the compiler would merge them.

inline __attribute__((target("avx2,fma"))) float multiply_add_avx2(int64_t rounds) {
  __m256 sums[12];
  for (int i = 0; i < 12; ++i) sums[i] = _mm256_set1_ps(static_cast<float>(i));
  const __m256 a = _mm256_set1_ps(0.3F), b = _mm256_set1_ps(0.7F);
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
    for (__m256& sum : sums) sum = _mm256_fmadd_ps(a, b, sum);
  }
  for (int i = 1; i < 12; ++i) sums[0] = _mm256_add_ps(sums[0], sums[i]);
  return _mm256_cvtss_f32(sums[0]);
}

inline __attribute__((target("avx512f"))) float multiply_add_avx512(int64_t rounds) {
  __m512 sums[24];
  for (int i = 0; i < 24; ++i) sums[i] = _mm512_set1_ps(static_cast<float>(i));
  const __m512 a = _mm512_set1_ps(0.3F), b = _mm512_set1_ps(0.7F);
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 24
    for (__m512& sum : sums) sum = _mm512_fmadd_ps(a, b, sum);
  }
  for (int i = 1; i < 24; ++i) sums[0] = _mm512_add_ps(sums[0], sums[i]);
  return _mm512_cvtss_f32(sums[0]);
}

inline __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16"))) float dot_product_avx512(int64_t rounds) {
  __m512 sums[24];
  for (int i = 0; i < 24; ++i) sums[i] = _mm512_set1_ps(static_cast<float>(i));
  const __m512 x = _mm512_set1_ps(0.3F), y = _mm512_set1_ps(0.7F);
  const __m512bh a = _mm512_cvtne2ps_pbh(x, y), b = _mm512_cvtne2ps_pbh(y, x);
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 24
    for (__m512& sum : sums) sum = _mm512_dpbf16_ps(sum, a, b);
  }
  for (int i = 1; i < 24; ++i) sums[0] = _mm512_add_ps(sums[0], sums[i]);
  return _mm512_cvtss_f32(sums[0]);
}

/// oneDNN has requested the tiles from the system.
inline __attribute__((target("amx-tile,amx-bf16"))) float dot_product_amx(int64_t rounds) {
  struct alignas(64) {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  } shapes;
  alignas(64) bf16 operand[16][32];
  for (auto& row : operand) std::fill(std::begin(row), std::end(row), bf16(0.3F));
  _tile_loadconfig(&shapes);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  _tile_loadd(6, operand, 64);
  _tile_loadd(7, operand, 64);
  for (int64_t round = 0; round < rounds; ++round) {
    _tile_dpbf16ps(0, 6, 7);
    _tile_dpbf16ps(1, 6, 7);
    _tile_dpbf16ps(2, 6, 7);
    _tile_dpbf16ps(3, 6, 7);
    _tile_dpbf16ps(4, 6, 7);
    _tile_dpbf16ps(5, 6, 7);
  }
  alignas(64) float sums[16][16];
  _tile_stored(0, sums, 64);
  _tile_release();
  return sums[0][0];
}

#endif

/// Instruction set for multiplications and additions.
struct Arithmetic {
  const char* name;
  DType operands;
  double flops;  ///< per round
  float (*run)(int64_t rounds);
};

/// The widest instructions for each type of operands; absent if this program has none.
inline std::vector<Arithmetic> arithmetic_here() {
  std::vector<Arithmetic> all;
#if defined(__x86_64__)
  if (processor_has(Instructions::avx512)) {
    all.push_back({"vfmadd231ps, 512 bits", DType::f32, 24 * 16 * 2, multiply_add_avx512});
  } else if (processor_has(Instructions::avx2)) {
    all.push_back({"vfmadd231ps, 256 bits", DType::f32, 12 * 8 * 2, multiply_add_avx2});
  }
  if (processor_has(Instructions::avx512_bf16)) {
    all.push_back({"vdpbf16ps, 512 bits", DType::bf16, 24 * 16 * 4, dot_product_avx512});
  }
  if (processor_has(Instructions::amx)) {
    all.push_back({"tdpbf16ps", DType::bf16, 6 * 16 * 16 * 32 * 2, dot_product_amx});
  }
#endif
  return all;
}

/// GFLOP/s of all threads together, in the fastest attempt.
inline double rate_of(const Arithmetic& arithmetic, int threads) {
  constexpr double least_seconds = 0.02;
  constexpr int tries = 10;
  float sum = 0;
  const auto timed = [&](int64_t rounds, float& result) {
    const double begin = now();
    result += arithmetic.run(rounds);
    return now() - begin;
  };
  int64_t rounds = 1;
  while (timed(rounds, sum) < least_seconds) rounds *= 2;
  double best = 0;
  for (int i = 0; i < tries; ++i) {
    double slowest = 0;
#pragma omp parallel num_threads(threads) reduction(max : slowest) reduction(+ : sum)
    {
#pragma omp barrier
      slowest = timed(rounds, sum);
    }
    best = std::max(best, static_cast<double>(rounds) * arithmetic.flops * threads / slowest * 1e-9);
  }
  LLMTRAIN_CHECK(std::isfinite(sum), "the sums are wrong");
  return best;
}

/// Measured and printed by instruction and number of threads.
class Limits {
 public:
  void measure(const std::vector<int>& threads, const std::vector<DType>& types) {
    for (const Arithmetic& arithmetic : arithmetic_here()) {
      // For bf16 operands all instructions count.
      const bool wanted = std::ranges::any_of(
          types, [&](DType type) { return type == DType::bf16 || arithmetic.operands == DType::f32; });
      for (const int t : threads) {
        if (!wanted) continue;
        measured_.push_back({arithmetic.operands, t, rate_of(arithmetic, t)});
        fmt::print("{:24} {:5} {} threads {:12} {:8.1f} GFLOP/s   limit\n", arithmetic.name,
                   name_of(arithmetic.operands), t, "", measured_.back().rate);
      }
    }
    std::fflush(stdout);
  }
  /// GFLOP/s; 0: unknown.
  double of(DType operands, int threads) const {
    double limit = 0;
    for (const Measured& m : measured_) {
      if (m.threads == threads && (operands == DType::bf16 || m.operands == DType::f32))
        limit = std::max(limit, m.rate);
    }
    return limit;
  }

 private:
  struct Measured {
    DType operands;
    int threads;
    double rate;
  };
  std::vector<Measured> measured_;
};

}  // namespace llmtrain
