// Single kernels on a GPU, compared with its memory bandwidth: attention, the head with its loss, AdamW, and the cost
// of fixed orders of summation (the norm of the gradients, the embedding's backward pass). Prints one JSON object per
// line; gpu_kernels.py runs it alternately with PyTorch and prints the ratios.
//
// usage: gpu_kernels_bench [small] [attention] [head] [adamw] [order]     (default: all; small: sizes of tests)

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "gpu_buffers.hpp"
#include "kernels/adamw.hpp"
#include "kernels/attention.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/embedding.hpp"
#include "kernels/reduce.hpp"
#include "layers/head.hpp"
#include "parallel/local_communicator.hpp"

namespace llmtrain {
namespace {

struct Sizes {
  int64_t tokens = 16384, width = 2048;  ///< sizes of attention
  std::vector<int64_t> lengths{512, 1024, 2048, 4096, 8192, 16384};
  int64_t rows = 8192, channels = 1024;  ///< sizes of the head
  std::vector<int64_t> vocabularies{50304, 128256};
  std::vector<int64_t> parameters{124'000'000, 1'558'000'000};
  int64_t embedded_rows = 65536, embedded_vocabulary = 50304, embedded_channels = 768;
};
const Sizes small{128, 256, {64, 128}, 64, 64, {500}, {100'000}, 1024, 500, 64};

void attention(Stream& stream, const Sizes& sizes, int64_t head_dim, int64_t length) {
  const int64_t tokens = sizes.tokens, heads = sizes.width / head_dim, documents = tokens / length;
  Buffers buffers{stream};
  const Batch batch = buffers.batch(documents, length);
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
      "{{\"what\": \"attention\", \"head_dim\": {}, \"heads\": {}, \"length\": {}, \"documents\": {}, \"library\": "
      "\"{}\", \"forward\": {:.6e}, \"backward\": {:.6e}}}\n",
      head_dim, heads, length, documents, attention_library(), forward, backward);
}

void head(Stream& stream, const Sizes& sizes, int64_t vocabulary) {
  const int64_t rows = sizes.rows, channels = sizes.channels;
  std::vector<UnitSpec> units;
  Head head;
  head.linear.weight = UnitBuilder(units, "head").matrix("weight", vocabulary, channels, Initializer::normal(0.02), {});
  head.linear.in = channels;
  head.linear.out = head.vocabulary = vocabulary;
  ParamStoreOptions options;
  options.compute = DType::bf16;
  ParamStore params(units, options);
  Arena arena;
  params.plan(arena);
  arena.reserve_scratch(head.scratch_bytes(DType::bf16, rows));
  const DeviceBuffer memory(arena.bytes());
  arena.commit(memory.data());
  const auto communicator = make_local_communicator();
  params.start(*communicator, stream);
  params.initialize(1);
  Context ctx{params, arena, stream};
  Buffers buffers{stream};
  std::vector<int32_t> targets;
  for (int64_t row = 0; row < rows; ++row) targets.push_back(static_cast<int32_t>(row * 7919 % vocabulary));
  const Tensor x = buffers.random(DType::bf16, {rows, channels}), dx = buffers.make(DType::bf16, {rows, channels});
  Batch batch;
  batch.tokens = rows;
  batch.targets = buffers.of(DType::i32, targets);
  const TokenStatistics statistics{buffers.make(DType::f32, {rows}), buffers.make(DType::f32, {rows}), {}, {}};
  const TokenCotangents cotangents{buffers.random(DType::f32, {rows}), {}, {}};
  params.reducer().begin_step(1);
  params.reducer().begin_round(0);
  params.acquire(0);
  const double both = seconds(stream, [&] { head.forward_backward(ctx, batch, dx, x, statistics, cotangents); });
  fmt::print(
      "{{\"what\": \"head\", \"rows\": {}, \"channels\": {}, \"vocabulary\": {}, \"forward_backward\": {:.6e}, "
      "\"scratch\": {}}}\n",
      rows, channels, vocabulary, both, head.scratch_bytes(DType::bf16, rows));
}

void adamw(Stream& stream, int64_t parameters) {
  Buffers buffers{stream};
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

/// The norm of gradients as an exact sum.
void norm(Stream& stream, int64_t parameters) {
  Buffers buffers{stream};
  const Tensor gradient = buffers.random(DType::f32, {parameters});
  const Tensor sum = buffers.make(DType::i64, {ExactSum::integer_count});
  fill_zero(sum.data, sum.bytes(), stream);
  const double exact = seconds(stream, [&] { sum_of_squares(sum, gradient, stream); });
  fmt::print("{{\"what\": \"norm\", \"parameters\": {}, \"seconds\": {:.6e}}}\n", parameters, exact);
}

/// Gradients of rows that are added in order.
void embedding(Stream& stream, const Sizes& sizes) {
  const int64_t rows = sizes.embedded_rows, vocabulary = sizes.embedded_vocabulary, channels = sizes.embedded_channels;
  Buffers buffers{stream};
  Batch batch;
  batch.tokens = rows;
  batch.ids = buffers.of(DType::i32, word_ids(rows, vocabulary));
  const Tensor dx = buffers.random(DType::f32, {rows, channels}),
               dtable = buffers.make(DType::f32, {vocabulary, channels});
  fill_zero(dtable.data, dtable.bytes(), stream);
  const double ordered = seconds(stream, [&] { embedding_backward(dtable, {}, dx, 1, batch, {}, stream); });
  fmt::print("{{\"what\": \"embedding\", \"rows\": {}, \"vocabulary\": {}, \"channels\": {}, \"seconds\": {:.6e}}}\n",
             rows, vocabulary, channels, ordered);
}

void run(int argc, char** argv) {
  const auto named = [&](const char* what) {
    return std::any_of(argv + 1, argv + argc, [&](const char* a) { return std::strcmp(a, what) == 0; });
  };
  const bool all = argc < 2 || (argc == 2 && named("small"));
  const Sizes sizes = named("small") ? small : Sizes{};
  Stream stream;
  if (all || named("attention")) {
    for (const int64_t head_dim : {64, 128}) {
      for (const int64_t length : sizes.lengths) {
        try {
          attention(stream, sizes, head_dim, length);
          // LLMTRAIN_ATTENTION=cudnn, which is not installed or does not support such sequences
        } catch (const UserError& error) {
          if (error.code() != ExitCode::missing_input) throw;
          fmt::print(stderr, "attention, heads of {}, {} tokens: {}\n", head_dim, length, error.what());
        }
      }
    }
  }
  if (all || named("head")) {
    for (const int64_t vocabulary : sizes.vocabularies) head(stream, sizes, vocabulary);
  }
  if (all || named("adamw")) {
    for (const int64_t parameters : sizes.parameters) adamw(stream, parameters);
  }
  if (all || named("order")) {
    for (const int64_t parameters : sizes.parameters) norm(stream, parameters);
    embedding(stream, sizes);
  }
}

}  // namespace
}  // namespace llmtrain

int main(int argc, char** argv) {
  using namespace llmtrain;
  try {
    const DeviceRuntime runtime(0, 1);
    run(argc, argv);
  } catch (const UserError& error) {
    fmt::print(stderr, "{}\n", error.what());
    return static_cast<int>(error.code());
  }
}
