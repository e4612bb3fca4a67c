// Kernels alone on a GPU, beside what its memory can do: attention, the head with its loss, AdamW. Prints one JSON
// object a line; gpu_kernels.py runs it in turn with PyTorch and prints the ratios.
//
// usage: gpu_kernels_bench [attention] [head] [adamw]     (all)

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <vector>

#include "kernels/adamw.hpp"
#include "kernels/attention.hpp"
#include "kernels/elementwise.hpp"
#include "layers/head.hpp"
#include "parallel/local_communicator.hpp"

namespace llmtrain {
namespace {

constexpr int rounds = 7;

struct Buffers {
  Stream& stream;
  std::vector<DeviceBuffer> owned;

  Tensor make(DType dtype, std::initializer_list<int64_t> dims) {
    Tensor t(nullptr, dtype, dims);
    owned.emplace_back(t.bytes());
    t.data = owned.back().data();
    return t;
  }
  /// Zeros run faster than numbers.
  Tensor random(DType dtype, std::initializer_list<int64_t> dims, double std = 1) {
    const Tensor t = make(dtype, dims);
    if (dtype == DType::f32) {
      fill_normal(t, std, owned.size(), 0, stream);
      return t;
    }
    const DeviceBuffer wide(4 * t.numel());
    const Tensor normal(wide.data(), DType::f32, {t.numel()});
    fill_normal(normal, std, owned.size(), 0, stream);
    cast(t.reshaped({t.numel()}), normal, stream);
    stream.synchronize();
    return t;
  }
  template <class T>
  Tensor of(DType dtype, const std::vector<T>& values) {
    const Tensor t = make(dtype, {static_cast<int64_t>(values.size())});
    copy_to_device(t.data, values.data(), t.bytes(), stream);
    stream.synchronize();
    return t;
  }
};

/// Median over the rounds of the mean of so many calls that their launches do not count.
double seconds(Stream& stream, const std::function<void()>& call) {
  using Clock = std::chrono::steady_clock;
  const auto timed = [&](int calls) {
    const auto begin = Clock::now();
    for (int i = 0; i < calls; ++i) call();
    stream.synchronize();
    return std::chrono::duration<double>(Clock::now() - begin).count() / calls;
  };
  const int calls = std::clamp(static_cast<int>(0.05 / std::max(timed(3), 1e-6)), 3, 2000);
  std::array<double, rounds> all{};
  for (double& one : all) one = timed(calls);
  std::ranges::sort(all);
  return all[rounds / 2];
}

void attention(Stream& stream, int64_t head_dim, int64_t length) {
  constexpr int64_t tokens = 16384;
  const int64_t heads = 2048 / head_dim, documents = tokens / length;
  Buffers buffers{stream, {}};
  std::vector<int32_t> segments, offsets;
  std::vector<int64_t> ids;
  for (int64_t d = 0; d <= documents; ++d) segments.push_back(static_cast<int32_t>(d * length));
  for (int64_t row = 0; row < tokens; ++row) {
    ids.push_back(row / length);
    offsets.push_back(static_cast<int32_t>(row % length));
  }
  Batch batch;
  batch.tokens = tokens;
  batch.segment_count = documents;
  batch.longest_segment = length;
  batch.segments = buffers.of(DType::i32, segments);
  batch.sequence_ids = buffers.of(DType::i64, ids);
  batch.sequence_offsets = buffers.of(DType::i32, offsets);
  const AttentionShape shape{heads, heads, head_dim, 0, 1.0f / std::sqrt(static_cast<float>(head_dim)), 0, length};
  const Tensor qkv = buffers.random(DType::bf16, {tokens, 3 * heads * head_dim});
  const Tensor dqkv = buffers.make(DType::bf16, {tokens, 3 * heads * head_dim});
  const Tensor out = buffers.make(DType::bf16, {tokens, heads * head_dim});
  const Tensor dout = buffers.random(DType::bf16, {tokens, heads * head_dim});
  const Tensor lse = buffers.make(DType::f32, {heads, tokens});
  const Tensor workspace = buffers.make(DType::u8, {attention_workspace_bytes(shape, tokens)});
  const double forward =
      seconds(stream, [&] { attention_forward(out, lse, qkv, batch, shape, {}, workspace, stream); });
  const double backward = seconds(stream, [&] {
    attention_backward({dqkv, dout, out, lse, qkv}, batch, shape, {}, workspace, stream);
  });
  fmt::print(
      "{{\"what\": \"attention\", \"head_dim\": {}, \"heads\": {}, \"length\": {}, \"documents\": {}, \"forward\": "
      "{:.6e}, "
      "\"backward\": {:.6e}}}\n",
      head_dim, heads, length, documents, forward, backward);
}

void head(Stream& stream, int64_t vocabulary) {
  constexpr int64_t rows = 8192, channels = 1024;
  UnitSpec unit{"head", {}, false};
  Head head;
  head.weight = UnitBuilder(unit, 0).matrix("weight", vocabulary, channels, Initializer::normal(0.02), {});
  head.channels = channels;
  head.rows_of_table = head.vocabulary = vocabulary;
  ParamStoreOptions options;
  options.compute = DType::bf16;
  ParamStore params({unit}, options);
  Arena arena;
  params.plan(arena);
  arena.reserve_scratch(head.scratch_bytes(DType::bf16, rows));
  const DeviceBuffer memory(arena.bytes());
  arena.commit(memory.data());
  const auto communicator = make_local_communicator();
  params.start(*communicator, stream);
  params.initialize(1);
  Context ctx{params, arena, stream};
  Buffers buffers{stream, {}};
  std::vector<int32_t> targets;
  for (int64_t row = 0; row < rows; ++row) targets.push_back(static_cast<int32_t>(row * 7919 % vocabulary));
  const Tensor x = buffers.random(DType::bf16, {rows, channels}), dx = buffers.make(DType::bf16, {rows, channels});
  const Tensor target = buffers.of(DType::i32, targets);
  const TokenStatistics statistics{buffers.make(DType::f32, {rows}), buffers.make(DType::f32, {rows}), {}, {}};
  const TokenCotangents cotangents{buffers.random(DType::f32, {rows}), {}, {}};
  params.begin_step(1);
  params.begin_round(0);
  params.acquire(0);
  const double both = seconds(stream, [&] { head.forward_backward(ctx, dx, x, target, statistics, cotangents); });
  fmt::print(
      "{{\"what\": \"head\", \"rows\": {}, \"channels\": {}, \"vocabulary\": {}, \"forward_backward\": {:.6e}, "
      "\"scratch\": {}}}\n",
      rows, channels, vocabulary, both, head.scratch_bytes(DType::bf16, rows));
}

void adamw(Stream& stream, int64_t parameters) {
  Buffers buffers{stream, {}};
  const Tensor master = buffers.random(DType::f32, {parameters}), gradient = buffers.random(DType::f32, {parameters}),
               m = buffers.random(DType::f32, {parameters}, 1e-3), v = buffers.make(DType::f32, {parameters}),
               weights = buffers.make(DType::bf16, {parameters});
  fill(v, 1e-6f, stream);
  AdamwStep step{.learning_rate = 1e-4, .weight_decay = 0.1};
  const double update = seconds(stream, [&] {
    ++step.step;
    adamw_update(master, m, v, gradient, weights, step, stream);
  });
  const double copy = seconds(stream, [&] { copy_on_device(m.data, gradient.data, m.bytes(), stream); });
  const double rate = 30.0 * static_cast<double>(parameters) / update;
  const double copy_rate = 8.0 * static_cast<double>(parameters) / copy;
  fmt::print(
      "{{\"what\": \"adamw\", \"parameters\": {}, \"bytes_per_second\": {:.6e}, \"copy\": {:.6e}, \"seconds\": "
      "{:.6e}, \"of_copy\": {:.3f}}}\n",
      parameters, rate, copy_rate, update, rate / copy_rate);
}

}  // namespace
}  // namespace llmtrain

int main(int argc, char** argv) {
  using namespace llmtrain;
  const auto wanted = [&](const char* what) {
    return argc < 2 || std::any_of(argv + 1, argv + argc, [&](const char* a) { return std::strcmp(a, what) == 0; });
  };
  try {
    const DeviceRuntime runtime(0, 1);
    Stream stream;
    if (wanted("attention")) {
      for (const int64_t head_dim : {64, 128}) {
        for (const int64_t length : {512, 1024, 2048, 4096, 8192, 16384}) attention(stream, head_dim, length);
      }
    }
    if (wanted("head")) {
      for (const int64_t vocabulary : {50304, 128256}) head(stream, vocabulary);
    }
    if (wanted("adamw")) {
      for (const int64_t millions : {124, 1558}) adamw(stream, millions * 1000000);
    }
  } catch (const UserError& error) {
    fmt::print(stderr, "{}\n", error.what());
    return static_cast<int>(error.code());
  }
}
