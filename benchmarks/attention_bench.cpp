// Speed of attention, forward and backward, as GFLOP/s of the causal half: 2 D (forward: 2, backward: 5 products) per
// visible (query, key) pair and head. Every shape runs in fp32 and bf16 with 1 and 2 threads in one process.

#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <random>
#include <vector>

#include "kernels/attention.hpp"

namespace {

using namespace llmtrain;

struct Case {
  const char* name;
  int64_t documents;
  int64_t length;
  AttentionShape shape;
  float dropout;
};

double best_seconds(const std::function<void()>& work) {
  using Clock = std::chrono::steady_clock;
  double best = 1e9;
  double total = 0;
  work();
  for (int repeat = 0; repeat < 50 && total < 0.5; ++repeat) {
    const auto start = Clock::now();
    work();
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    best = std::min(best, seconds);
    total += seconds;
  }
  return best;
}

struct Buffers {
  std::vector<DeviceBuffer> owned;
  Tensor make(DType dtype, std::initializer_list<int64_t> dims) {
    Tensor t(nullptr, dtype, dims);
    owned.emplace_back(t.bytes());
    t.data = owned.back().data();
    return t;
  }
  Tensor random(DType dtype, std::initializer_list<int64_t> dims) {
    const Tensor t = make(dtype, dims);
    std::mt19937 generator(1);
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < t.numel(); ++i) {
      const float x = normal(generator);
      if (dtype == DType::f32) {
        t.as<float>()[i] = x;
      } else {
        t.as<bf16>()[i] = bf16(x);
      }
    }
    return t;
  }
};

void run(const Case& c, DType dtype, int threads) {
  omp_set_num_threads(threads);
  const AttentionShape& s = c.shape;
  const int64_t n = c.documents * c.length;
  Buffers buffers;
  Batch batch;
  batch.tokens = n;
  batch.segment_count = c.documents;
  batch.longest_segment = c.length;
  batch.segments = buffers.make(DType::i32, {c.documents + 1});
  batch.sequence_ids = buffers.make(DType::i64, {n});
  batch.sequence_offsets = buffers.make(DType::i32, {n});
  for (int64_t d = 0; d <= c.documents; ++d) batch.segments.as<int32_t>()[d] = static_cast<int32_t>(d * c.length);
  for (int64_t r = 0; r < n; ++r) {
    batch.sequence_ids.as<int64_t>()[r] = r / c.length;
    batch.sequence_offsets.as<int32_t>()[r] = static_cast<int32_t>(r % c.length);
  }
  const int64_t width = (s.heads + 2 * s.kv_heads) * s.head_dim;
  const Tensor qkv = buffers.random(dtype, {n, width});
  const Tensor dqkv = buffers.make(dtype, {n, width});
  const Tensor out = buffers.make(dtype, {n, s.heads * s.head_dim});
  const Tensor dout = buffers.random(dtype, {n, s.heads * s.head_dim});
  const Tensor lse = buffers.make(DType::f32, {s.heads, n});
  const Tensor workspace = buffers.make(DType::u8, {attention_workspace_bytes(s, n)});
  const Dropout dropout{c.dropout, 1};
  Stream stream;

  const double forward = best_seconds([&] { attention_forward(out, lse, qkv, batch, s, dropout, workspace, stream); });
  const double backward = best_seconds([&] {
    attention_backward({dqkv, dout, out, lse, qkv}, batch, s, dropout, workspace, stream);
  });
  const double pairs = static_cast<double>(c.documents) * static_cast<double>(c.length) *
                       static_cast<double>(c.length + 1) / 2 * static_cast<double>(s.heads);
  const double product = pairs * 2 * static_cast<double>(s.head_dim) * 1e-9;
  std::printf("%-34s %-5s %d thread%s forward %7.2f ms %6.1f GFLOP/s   backward %7.2f ms %6.1f GFLOP/s\n", c.name,
              dtype == DType::f32 ? "fp32" : "bf16", threads, threads == 1 ? ", " : "s,", forward * 1e3,
              2 * product / forward, backward * 1e3, 5 * product / backward);
}

}  // namespace

int main() {
  const DeviceRuntime runtime(0, 2);
  const Case cases[] = {
      {"GPT-2 124M, B=1 T=1024 H=12 D=64", 1, 1024, {12, 12, 64, 0, 0.125f}, 0},
      {"the same with dropout 0.1", 1, 1024, {12, 12, 64, 0, 0.125f}, 0.1f},
      {"characters, B=12 T=64 H=4 D=32", 12, 64, {4, 4, 32, 0, 0.1767767f}, 0},
      {"Llama-like, T=2048 H=8 G=2 D=128", 1, 2048, {8, 2, 128, 0, 0.0883883f}, 0},
  };
  for (const Case& c : cases) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (const int threads : {1, 2}) run(c, dtype, threads);
    }
  }
  return 0;
}
