// Whether a GPU computes right, on the shapes of real models: the first program to run on a new kind of GPU, and with a
// new driver, cuBLASLt or cuDNN. Prints a JSON object for each item; exit code 1 if one is wrong.
//
// usage: gpu_probe [--small] [--timings] [ITEM...]
//
//   ITEM       products, huge, rows, repeats, attention, graph, nccl, quantized (all)
//   --small    sizes for the emulator
//   --timings  seconds and TFLOP/s of each item, too
//
// products: operands of ones, so that each output is the length of the inner dimension, exactly; a kernel that drops a
// tail of it, or writes past a row, is seen. repeats: sums must have one order. attention: the fp32 kernel is the
// reference of the tensor cores' and of cuDNN's.

#include "gpu_probe.hpp"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <string_view>

#include "kernels/attention.hpp"
#include "kernels/embedding.hpp"
#include "kernels/logprob.hpp"
#include "kernels/matmul.hpp"
#include "kernels/norm.hpp"
#include "kernels/reduce.hpp"
#include "kernels/workspace.hpp"
#include "parallel/job/runtime.hpp"

namespace llmtrain::probe {

void Report::add(const std::string& item, const std::string& what, const std::string& wrong, const std::string& facts) {
  wrong_ += wrong.empty() ? 0 : 1;
  fmt::print(R"({{"item": "{}", "what": "{}", "ok": {}{}{}}})"
             "\n",
             item, what, wrong.empty(), facts.empty() ? "" : ", " + facts,
             wrong.empty() ? "" : ", \"wrong\": \"" + wrong + '"');
  std::fflush(stdout);  // the next item may hang
}

void Report::pass_over(const std::string& item, const std::string& what, const std::string& why) {
  fmt::print(R"({{"item": "{}", "what": "{}", "skipped": "{}"}})"
             "\n",
             item, what, why);
}

std::vector<float> values_of(const Tensor& t, Stream& stream) {
  std::vector<float> values(static_cast<size_t>(t.numel()));
  std::vector<char> bytes(static_cast<size_t>(t.bytes()));
  copy_to_host(bytes.data(), t.data, t.bytes(), stream);
  stream.synchronize();
  if (t.dtype == DType::f32) {
    std::memcpy(values.data(), bytes.data(), bytes.size());
  } else {
    const auto* from = reinterpret_cast<const bf16*>(bytes.data());
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(from[i]);
  }
  return values;
}

std::string other_than(const Tensor& t, float value, const Tensor& expected, Stream& stream) {
  fill(expected, value, stream);
  if (chunked_hash(t, 0, stream) == chunked_hash(expected, 0, stream)) return {};
  const float rounded = t.dtype == DType::bf16 ? static_cast<float>(bf16(value)) : value;
  const std::vector<float> values = values_of(t, stream);
  const auto is_other = [&](float x) { return x != rounded; };
  const auto first = std::ranges::find_if(values, is_other);
  if (first == values.end()) return "the hash differs, but no element does";
  return fmt::format("{} of {} elements; the first is element {} with {} instead of {}",
                     std::ranges::count_if(values, is_other), values.size(), first - values.begin(), *first, rounded);
}

std::string other_bytes(const std::vector<Tensor>& outputs, float poison, int repeats, const std::function<void()>& run,
                        Stream& stream) {
  std::vector<uint64_t> first;
  for (int repeat = 0; repeat < repeats; ++repeat) {
    for (const Tensor& t : outputs) fill(t, poison, stream);
    run();
    for (size_t i = 0; i < outputs.size(); ++i) {
      const uint64_t hash = chunked_hash(outputs[i], 0, stream);
      if (repeat == 0) {
        first.push_back(hash);
      } else if (hash != first[i]) {
        return fmt::format("repeat {} of {} gives other bytes in output {}", repeat + 1, repeats, i);
      }
    }
  }
  return {};
}

std::string timing(const Options& options, Stream& stream, double flops, const std::function<void()>& run) {
  if (!options.timings) return {};
  const double time = seconds(stream, run, options.small);
  const std::string rate = flops > 0 ? fmt::format(", \"tflops\": {:.1f}", flops / time / 1e12) : "";
  return fmt::format("\"seconds\": {:.6e}{}", time, rate);
}

namespace {

/// A linear layer of a model with a batch of `rows` tokens.
struct LayerShape {
  const char* model;
  int64_t rows, out, in;
  bool head = false;  ///< outputs are fp32, and their rows padded
};

std::vector<LayerShape> layers_of(const char* model, int64_t rows, int64_t width, int64_t qkv, int64_t up, int64_t down,
                                  int64_t vocabulary) {
  return {{model, rows, qkv, width},
          {model, rows, width, width},
          {model, rows, up, width},
          {model, rows, width, down},
          {model, std::min<int64_t>(rows, 2048), vocabulary, width, true}};
}

std::vector<LayerShape> layer_shapes(bool small) {
  std::vector<LayerShape> all;
  const auto add = [&](const std::vector<LayerShape>& more) { all.insert(all.end(), more.begin(), more.end()); };
  if (small) {
    add(layers_of("small", 128, 64, 192, 256, 256, 320));
    add({{"tails", 77, 64, 72}, {"tails", 200, 137, 200, true}});
    return all;
  }
  add(layers_of("124M", 65536, 768, 2304, 3072, 3072, 50304));
  add(layers_of("1558M", 16384, 1600, 4800, 6400, 6400, 50304));
  add(layers_of("8B", 16384, 4096, 6144, 28672, 14336, 128256));
  add({{"8B LoRA", 16384, 16, 4096}, {"8B LoRA", 16384, 4096, 16}, {"8B LoRA", 16384, 28672, 16}});
  // Tails of each of the three inner dimensions: rows of fine-tuning, odd vocabularies, and widths.
  for (const int64_t rows : {1, 65, 1000, 2047, 4095, 6001, 12345, 16383}) {
    add({{"tails", rows, 768, 768}, {"tails", rows, 4096, 4096}});
  }
  for (const int64_t vocabulary : {32003, 50257, 128003, 151665}) add({{"tails", 2047, vocabulary, 1024, true}});
  for (const int64_t width : {72, 200, 328, 1000, 1160, 4104, 11008}) add({{"tails", 4096, 1024, width}});
  return all;
}

std::string name_of(const char* product, const LayerShape& s) {
  return fmt::format("{} {} {} x {} x {}", s.model, product, s.rows, s.out, s.in);
}

/// The three products of a layer.
struct LayerProducts {
  LayerProducts(const LayerShape& shape, bool random, Stream& on) : s(shape), buffers{on} {
    const int64_t columns = s.head ? padded_columns(s.out) : s.out;
    const auto operand = [&](std::initializer_list<int64_t> dims) {
      return random ? buffers.random(DType::bf16, dims) : buffers.filled(DType::bf16, dims, 1);
    };
    x = operand({s.rows, s.in});
    w = operand({s.out, s.in});
    dy = operand({s.rows, columns});
    y = buffers.make(s.head ? DType::f32 : DType::bf16, {s.rows, columns});
    dx = buffers.make(DType::bf16, {s.rows, s.in});
    dw = buffers.make(DType::f32, {s.out, s.in});
  }
  void forward() const { linear_forward(y, x, w, {}, buffers.stream); }
  void backward_input() const { linear_backward_input(dx, dy, w, false, buffers.stream); }
  void backward_weight() const { linear_backward_weight(dw, dy, x, false, buffers.stream); }

  LayerShape s;
  mutable Buffers buffers;
  Tensor x, w, dy, y, dx, dw;
};

void products(Report& report, const Options& options, Stream& stream) {
  using Product = void (LayerProducts::*)() const;
  struct Case {
    const char* name;
    Product run;
    Tensor LayerProducts::*output;
    int64_t LayerShape::*inner;
  };
  const Case cases[] = {{"forward", &LayerProducts::forward, &LayerProducts::y, &LayerShape::in},
                        {"dx", &LayerProducts::backward_input, &LayerProducts::dx, &LayerShape::out},
                        {"dw", &LayerProducts::backward_weight, &LayerProducts::dw, &LayerShape::rows}};
  for (const LayerShape& shape : layer_shapes(options.small)) {
    LayerProducts ones(shape, false, stream);
    const double flops = 2.0 * static_cast<double>(shape.rows) * static_cast<double>(shape.out * shape.in);
    for (const Case& c : cases) {
      const Tensor out = ones.*c.output;
      const auto length = static_cast<float>(shape.*c.inner);
      if (c.output == &LayerProducts::y && out.dim(1) != shape.out) continue;  // the padding is not written
      fill(out, -1, stream);
      (ones.*c.run)();
      const std::string wrong = other_than(out, length, ones.buffers.make(out.dtype, {out.numel()}), stream);
      std::string facts;
      if (options.timings) {
        const LayerProducts random(shape, true, stream);
        facts = timing(options, stream, flops, [&] { (random.*c.run)(); });
      }
      report.add("products", name_of(c.name, shape), wrong, facts);
    }
  }
}

/// Offsets of elements beyond 2^31 in a product's output.
void huge(Report& report, const Options& options, Stream& stream) {
  const int64_t rows = options.small ? 96 : 43008, out = options.small ? 192 : 50304, in = 64;
  Buffers buffers{stream};
  const Tensor x = buffers.filled(DType::bf16, {rows, in}, 1), w = buffers.filled(DType::bf16, {out, in}, 1),
               y = buffers.filled(DType::bf16, {rows, out}, -1);
  linear_forward(y, x, w, {}, stream);
  const std::string wrong = other_than(y, in, buffers.make(DType::bf16, {y.numel()}), stream);
  report.add("huge", fmt::format("a product of {} outputs", y.numel()), wrong);
}

/// Bits of a row in batch-invariant products: alone, among 7 and among 63, as among 64.
void rows(Report& report, const Options& options, Stream& stream) {
  std::vector<LayerShape> shapes{{"small", 64, 192, 64}, {"small", 64, 64, 256}};
  if (!options.small) {
    shapes = {{"124M", 64, 2304, 768}, {"124M", 64, 50304, 768}, {"8B", 64, 6144, 4096},
              {"8B", 64, 28672, 4096}, {"8B", 64, 4096, 14336},  {"8B", 64, 128256, 4096}};
  }
  for (const LayerShape& s : shapes) {
    Buffers buffers{stream};
    const Tensor x = buffers.random(DType::bf16, {s.rows, s.in}), w = buffers.random(DType::bf16, {s.out, s.in}),
                 all = buffers.make(DType::bf16, {s.rows, s.out}), some = buffers.make(DType::bf16, {s.rows, s.out});
    for (const ProductRole role : {ProductRole::prefill, ProductRole::decoding}) {
      std::string wrong;
      linear_forward(all, x, w, {}, stream, role);
      for (const int64_t count : {1, 7, 63}) {
        const int64_t first = count == 63 ? 1 : 0;
        fill(some, -1, stream);
        linear_forward(some.rows(0, count), x.rows(first, count), w, {}, stream, role);
        const bool same = chunked_hash(some.rows(0, count), 0, stream) ==
                          chunked_hash(all.rows(first, count).reshaped({count, s.out}), 0, stream);
        if (!same) wrong = fmt::format("{} rows of 64 have other bits than among 64", count);
      }
      report.add("rows", name_of(role == ProductRole::prefill ? "prefill" : "decoding", s), wrong);
    }
  }
}

struct AttentionCase {
  int64_t documents, heads, kv_heads, length, head_dim;

  std::string name() const { return fmt::format("{} x {}/{} x {} x {}", documents, heads, kv_heads, length, head_dim); }
  int64_t tokens() const { return documents * length; }
  int64_t columns() const { return (heads + 2 * kv_heads) * head_dim; }
  AttentionShape shape(bool library) const {
    const float scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
    return {heads, kv_heads, head_dim, 0, scale, 0, library ? length : 0};
  }
  /// Of the causal half; backward five products instead of two.
  double flops(int products) const {
    const auto pairs = static_cast<double>(documents * heads * length) * static_cast<double>(length + 1) / 2;
    return 2.0 * products * pairs * static_cast<double>(head_dim);
  }
};

std::vector<AttentionCase> attention_cases(bool small) {
  if (small) return {{4, 2, 2, 64, 16}, {2, 4, 1, 64, 32}};
  return {{64, 12, 12, 1024, 64}, {4, 32, 8, 4096, 128}};
}

/// Both passes of one backend.
struct AttentionPasses {
  AttentionPasses(const AttentionCase& c, bool library, DType dtype, Buffers& buffers, const Tensor& q, const Tensor& d)
      : shape(c.shape(library)), stream(buffers.stream), batch(buffers.batch(c.documents, c.length)), qkv(q), dout(d) {
    out = buffers.make(dtype, {c.tokens(), c.heads * c.head_dim});
    lse = buffers.make(DType::f32, {c.heads, c.tokens()});
    dqkv = buffers.make(dtype, {c.tokens(), c.columns()});
    workspace = buffers.make(DType::u8, {attention_workspace_bytes(shape, c.tokens())});
  }
  void forward() const { attention_forward(out, lse, qkv, batch, shape, {}, workspace, stream); }
  void backward() const { attention_backward({dqkv, dout, out, lse, qkv}, batch, shape, {}, workspace, stream); }

  AttentionShape shape;
  Stream& stream;
  Batch batch;
  Tensor qkv, dout, out, lse, dqkv, workspace;
};

/// Why the library's attention cannot be tried; empty if it can.
std::string no_library(const AttentionCase& c) {
  if (!attention_assumption(c.shape(true), c.tokens()).empty()) return {};
  const std::string library = attention_library();
  return library.empty() ? "cuDNN is not used here" : library + " is not used for this shape";
}

/// Distance of two tensors over the length of the second one.
double distance(const Tensor& a, const Tensor& b, Stream& stream) {
  const std::vector<float> left = values_of(a, stream), right = values_of(b, stream);
  double apart = 0, length = 0;
  for (size_t i = 0; i < left.size(); ++i) {
    const double x = left[i], y = right[i];
    apart += (x - y) * (x - y);
    length += y * y;
  }
  return std::sqrt(apart / length);
}

/// One backend against the fp32 kernels on a few documents, then repeated and timed on all.
void attention_by(Report& report, const Options& options, const AttentionCase& all, bool library, Stream& stream) {
  const std::string what = fmt::format("{} attention {}", library ? "cuDNN" : "own", all.name());
  if (const std::string why = library ? no_library(all) : ""; !why.empty()) {
    return report.pass_over("attention", what, why);
  }
  AttentionCase few = all;
  few.documents = std::max<int64_t>(1, 4096 / all.length);
  if (options.small) few = all;
  {
    Buffers buffers{stream};
    const Tensor qkv = buffers.random(DType::bf16, {few.tokens(), few.columns()}),
                 dout = buffers.random(DType::bf16, {few.tokens(), few.heads * few.head_dim}),
                 wide = buffers.make(DType::f32, {few.tokens(), few.columns()}),
                 dwide = buffers.make(DType::f32, {few.tokens(), few.heads * few.head_dim});
    cast(wide, qkv, stream);
    cast(dwide, dout, stream);
    const AttentionPasses half(few, library, DType::bf16, buffers, qkv, dout),
        full(few, false, DType::f32, buffers, wide, dwide);
    for (const AttentionPasses* one : {&half, &full}) {
      one->forward();
      one->backward();
    }
    // Rounding of probabilities and results to bf16 gives 2^-9 each; a missing tile or mask gives 0.1 and more.
    const double forward = distance(half.out, full.out, stream), backward = distance(half.dqkv, full.dqkv, stream);
    const bool near = forward < 0.01 && backward < 0.02;
    report.add("attention", what + " against fp32", near ? "" : "too far from the fp32 kernels",
               fmt::format("\"forward\": {:.2e}, \"backward\": {:.2e}", forward, backward));
  }
  Buffers buffers{stream};
  const Tensor qkv = buffers.random(DType::bf16, {all.tokens(), all.columns()}),
               dout = buffers.random(DType::bf16, {all.tokens(), all.heads * all.head_dim});
  const AttentionPasses passes(all, library, DType::bf16, buffers, qkv, dout);
  const std::string forward = other_bytes(
      {passes.out, passes.lse}, -1, options.repeats, [&] { passes.forward(); }, stream);
  report.add("attention", what + " forward, repeated", forward,
             timing(options, stream, all.flops(2), [&] { passes.forward(); }));
  const std::string backward = other_bytes(
      {passes.dqkv}, -1, options.repeats, [&] { passes.backward(); }, stream);
  report.add("attention", what + " backward, repeated", backward,
             timing(options, stream, all.flops(5), [&] { passes.backward(); }));
}

void attention(Report& report, const Options& options, Stream& stream) {
  for (const AttentionCase& c : attention_cases(options.small)) {
    for (const bool library : {false, true}) attention_by(report, options, c, library, stream);
  }
}

/// An item whose outputs must have the same bytes each time. `zero`: the kernel adds to them.
void repeat(Report& report, const Options& options, const std::string& what, const std::vector<Tensor>& outputs,
            bool zero, Stream& stream, const std::function<void()>& run) {
  const std::string wrong = other_bytes(outputs, zero ? 0.0f : -1.0f, options.repeats, run, stream);
  report.add("repeats", what, wrong, timing(options, stream, 0, run));
}

void repeats(Report& report, const Options& options, Stream& stream) {
  const int64_t n = options.small ? 128 : 65536, c = options.small ? 64 : 768, v = options.small ? 500 : 50304;
  std::vector<LayerShape> shapes{{"small", 128, 256, 64}};
  if (!options.small) shapes = {{"124M", 65536, 3072, 768}, {"1558M", 16384, 6400, 1600}, {"8B", 16384, 14336, 4096}};
  for (const LayerShape& shape : shapes) {
    const LayerProducts product(shape, true, stream);
    repeat(report, options, name_of("dw", shape), {product.dw}, false, stream, [&] { product.backward_weight(); });
  }
  Buffers buffers{stream};
  Batch batch = buffers.batch(n / 64, 64);
  batch.ids = buffers.of(DType::i32, word_ids(n, v));
  const Tensor x = buffers.random(DType::f32, {n, c}), dx = buffers.random(DType::f32, {n, c}),
               table = buffers.make(DType::f32, {v, c}), weight = buffers.filled(DType::bf16, {c}, 1),
               y = buffers.make(DType::bf16, {n, c}), dy = buffers.random(DType::bf16, {n, c}),
               mean = buffers.make(DType::f32, {n}), rstd = buffers.make(DType::f32, {n}),
               dweight = buffers.make(DType::f32, {c}), dbias = buffers.make(DType::f32, {c});
  repeat(report, options, fmt::format("embedding backward, {} x {} of {}", n, c, v), {table}, true, stream,
         [&] { embedding_backward(table, {}, dx, 1, batch, {}, stream); });
  repeat(report, options, fmt::format("norm forward, {} x {}", n, c), {y, mean, rstd}, false, stream, [&] {
    norm_forward({NormKind::layernorm, y, mean, rstd, x, weight, {}, 1e-5f}, stream);
  });
  repeat(report, options, fmt::format("norm backward, {} x {}", n, c), {dx, dweight, dbias}, false, stream, [&] {
    norm_backward({NormKind::layernorm, dx, dweight, dbias, dy, x, weight, mean, rstd}, stream);
  });
  const int64_t r = options.small ? 64 : 4096;
  const Tensor logits = buffers.random(DType::f32, {r, v}), dlogits = buffers.make(DType::bf16, {r, v}),
               logp = buffers.make(DType::f32, {r}), lse = buffers.make(DType::f32, {r}),
               scale = buffers.filled(DType::f32, {r}, -1.0f);
  const Tensor targets = batch.ids.rows(0, r);
  repeat(report, options, fmt::format("logprob forward, {} x {}", r, v), {logp, lse}, false, stream, [&] {
    logprob_forward({logp, lse, {}, {}}, logits, targets, v, stream);
  });
  repeat(report, options, fmt::format("logprob backward, {} x {}", r, v), {dlogits}, false, stream, [&] {
    logprob_backward(dlogits, logits, targets, {logp, lse, {}, {}}, {scale, {}, {}}, v, 0, stream);
  });
}

/// Weights of 4 bits: the product of the codes is that of the dequantised matrix, bit for bit. Codes and nested scales
/// are bytes of random numbers.
void quantized(Report& report, const Options& options, Stream& stream) {
  const int64_t out = options.small ? 128 : 28672, in = options.small ? 256 : 4096, rows = options.small ? 32 : 4096;
  Buffers buffers{stream};
  const Quantization format;
  QuantizedMatrix matrix{format, out, in};
  const int64_t chunks = out * in / chunk_elements;
  const Tensor noise = buffers.random(DType::f32, {(chunks * chunk_bytes(format) + 3) / 4}),
               table = buffers.filled(DType::f32, {table_values(format, out, in)}, 0.01f),
               x = buffers.random(DType::bf16, {rows, in}), w = buffers.make(DType::bf16, {out, in}),
               y = buffers.make(DType::bf16, {rows, out}), expected = buffers.make(DType::bf16, {rows, out});
  matrix.slices[0] = {0, out, 0, static_cast<const uint8_t*>(noise.data), table.as<float>()};
  matrix.count = 1;
  const DeviceBuffer memory(
      linear_workspace_bytes({in, out, false, DType::bf16, DType::bf16, true, false, 0, QuantizedType::nf4}, rows));
  const WorkspaceScope workspace(Tensor(memory.data(), DType::u8, {memory.bytes()}));
  const std::string what = fmt::format("nf4 {} x {}", out, in);
  const WeightMatrix codes(matrix, DType::bf16);
  repeat(report, options, what + " dequantised", {w}, false, stream, [&] { dequantize(w, matrix, stream); });
  linear_forward(expected, x, w, {}, stream);
  linear_forward(y, x, codes, {}, stream);
  const bool same = chunked_hash(y, 0, stream) == chunked_hash(expected, 0, stream);
  report.add("quantized", what + " product", same ? "" : "other bits than with the dequantised matrix",
             timing(options, stream, 0, [&] { linear_forward(y, x, codes, {}, stream); }));
  for (const int64_t count : {1, 16}) {
    repeat(report, options, fmt::format("{} decoding {} rows", what, count), {y.rows(0, count)}, false, stream,
           [&] { linear_forward(y.rows(0, count), x.rows(0, count), codes, {}, stream, ProductRole::decoding); });
  }
}

int run(Runtime& runtime, int argc, char** argv) {
  Options options;
  std::vector<std::string_view> wanted;
  for (const std::string_view argument : std::vector<std::string_view>(argv + 1, argv + argc)) {
    if (argument == "--small") {
      options.small = true;
    } else if (argument == "--timings") {
      options.timings = true;
    } else {
      wanted.push_back(argument);
    }
  }
  if (options.small || options.timings) options.repeats = 3;
  runtime.start_device();
  Stream& stream = runtime.stream();
  Report report;
  const std::pair<std::string_view, std::function<void()>> items[] = {
      {"products", [&] { products(report, options, stream); }},
      {"huge", [&] { huge(report, options, stream); }},
      {"rows", [&] { rows(report, options, stream); }},
      {"repeats", [&] { repeats(report, options, stream); }},
      {"attention", [&] { attention(report, options, stream); }},
      {"graph", [&] { graph_of_a_model(report, options, stream); }},
      {"nccl", [&] { nccl_of_one_rank(report, runtime.communicator(), stream); }},
      {"quantized", [&] { quantized(report, options, stream); }}};
  for (const std::string_view name : wanted) {
    if (std::ranges::any_of(items, [&](const auto& item) { return item.first == name; })) continue;
    throw UserError(ExitCode::command_line, fmt::format("gpu_probe: there is no item '{}'", name));
  }
  for (const auto& [name, probe] : items) {
    if (wanted.empty() || std::ranges::find(wanted, name) != wanted.end()) probe();
  }
  return report.wrong() == 0 ? 0 : 1;
}

}  // namespace

}  // namespace llmtrain::probe

int main(int argc, char** argv) {
  llmtrain::Runtime runtime(argc, argv);
  return runtime.guard([&] { return llmtrain::probe::run(runtime, argc, argv); });
}
