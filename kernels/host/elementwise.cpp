#include "kernels/elementwise.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "core/profile.hpp"
#include "core/random_normal.hpp"
#include "kernels/host/dropout_row.hpp"
#include "kernels/host/element.hpp"
#include "kernels/host/parallel.hpp"
#include "kernels/host/philox8.hpp"

namespace llmtrain {

namespace {

/// out[i] = in[i] + scale[i] * delta[i]
template <class T>
void add_row(float* out, const float* in, const T* delta, const float* scale, int64_t count) {
  // NOLINTNEXTLINE(bugprone-branch-clone): they differ, but clang-tidy does not look behind the pragmas
  if (scale == nullptr) {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) out[i] = in[i] + host::load(delta + i);
  } else {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) out[i] = std::fma(scale[i], host::load(delta + i), in[i]);
  }
}

template <class T>
void scale_row(T* out, const float* in, const float* scale, int64_t count) {
  // NOLINTNEXTLINE(bugprone-branch-clone): as above
  if (scale == nullptr) {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) host::store(out + i, in[i]);
  } else {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) host::store(out + i, in[i] * scale[i]);
  }
}

void check_rows(const Tensor& stream_tensor, const Tensor& branch, const Batch& batch) {
  LLMTRAIN_CHECK(stream_tensor.rank == 2 && branch.rank == 2 && stream_tensor.shape == branch.shape &&
                     stream_tensor.dim(0) == batch.tokens && stream_tensor.dtype == DType::f32,
                 "residual stream: fp32 [N, C] of the batch");
}

constexpr int64_t rows_per_task = 8;

}  // namespace

void residual_add(const Tensor& out, const Tensor& in, const Tensor& delta, const Batch& batch, const Dropout& dropout,
                  Stream&) {
  const ProfileSpan span("residual_add", [&] { return traffic({&out, &in, &delta}); });
  check_rows(in, delta, batch);
  check_rows(out, delta, batch);
  const int64_t width = in.dim(1);
  host::dispatch(delta.dtype, [&](auto* tag) {
    const auto* from = static_cast<decltype(tag)>(delta.data);
    host::parallel_blocks(in.dim(0), rows_per_task, [&, from](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        float* out_row = static_cast<float*>(out.data) + r * width;
        const float* in_row = static_cast<const float*>(in.data) + r * width;
        host::with_dropout(dropout, batch, r, width, 0, width, [&](int64_t c, int64_t count, const float* scale) {
          add_row(out_row + c, in_row + c, from + r * width + c, scale, count);
        });
      }
    });
  });
}

void residual_add_backward(const Tensor& ddelta, const Tensor& dout, const Batch& batch, const Dropout& dropout,
                           Stream&) {
  const ProfileSpan span("residual_add_backward", [&] { return traffic({&ddelta, &dout}); });
  check_rows(dout, ddelta, batch);
  const int64_t width = dout.dim(1);
  host::dispatch(ddelta.dtype, [&](auto* tag) {
    auto* to = static_cast<decltype(tag)>(ddelta.data);
    host::parallel_blocks(dout.dim(0), rows_per_task, [&, to](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const float* in_row = static_cast<const float*>(dout.data) + r * width;
        host::with_dropout(dropout, batch, r, width, 0, width, [&](int64_t c, int64_t count, const float* scale) {
          scale_row(to + r * width + c, in_row + c, scale, count);
        });
      }
    });
  });
}

void cast(const Tensor& out, const Tensor& in, Stream& stream) {
  const ProfileSpan span("cast", [&] { return traffic({&out, &in}); });
  LLMTRAIN_CHECK(out.numel() == in.numel(), "cast: one element for each");
  if (out.dtype == in.dtype) {
    copy_on_device(out.data, in.data, in.bytes(), stream);
    return;
  }
  host::dispatch(out, in, [&](auto* to, const auto* from) {
    host::parallel_blocks(out.numel(), host::elementwise_block, [=](int64_t begin, int64_t end) {
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) host::store(to + i, host::load(from + i));
    });
  });
}

void add_bias(const Tensor& out, const Tensor& sum, const Tensor& bias, Stream& stream) {
  if (bias.empty()) return cast(out, sum, stream);
  const ProfileSpan span("add_bias", [&] { return traffic({&out, &sum}); });
  check_bias(out, sum, bias);
  const int64_t width = sum.dim(1);
  const float* from = sum.as<float>();
  host::dispatch(out, bias, [&](auto* to, const auto* added) {
    host::parallel_blocks(sum.dim(0), rows_per_task, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin * width; i < end * width; i += width) {
#pragma omp simd
        for (int64_t c = 0; c < width; ++c) host::store(to + i + c, from[i + c] + host::load(added + c));
      }
    });
  });
}

void add_in_order(const Tensor& out, std::span<const Tensor> in, bool first, Stream& stream) {
  const ProfileSpan span("add_in_order", [&] {
    double bytes = first ? traffic({&out}).bytes : traffic({&out, &out}).bytes;
    for (const Tensor& t : in) bytes += traffic({&t}).bytes;
    return Work{.bytes = bytes};
  });
  for (const Tensor& t : in) {
    LLMTRAIN_CHECK(out.numel() == t.numel() && out.dtype == DType::f32 && t.dtype == DType::f32,
                   "add_in_order: fp32, one element for each");
  }
  if (first && in.size() == 1) {
    copy_on_device(out.data, in[0].data, out.bytes(), stream);
    return;
  }
  float* to = out.as<float>();
  host::parallel_blocks(out.numel(), host::elementwise_block, [=](int64_t begin, int64_t end) {
    const float* sum = first ? in[0].as<float>() : to;
    for (size_t k = first ? 1 : 0; k < in.size(); ++k) {  // the block stays in the cache
      const float* from = in[k].as<float>();
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) to[i] = sum[i] + from[i];
      sum = to;
    }
  });
}

namespace {

constexpr int64_t tree_block = 1024;

/// Adds elements [first, first + count) along the tree; partial sums stay in the cache.
void add_tree_block(float* out, std::span<const Tensor> in, std::span<const uint8_t> additions, int64_t first,
                    int64_t count) {
  alignas(64) std::array<float, max_tree_depth * tree_block> memory;
  std::array<const float*, max_tree_depth> values{};
  size_t depth = 0;
  for (size_t k = 0; k < in.size(); ++k) {
    values[depth++] = in[k].as<float>() + first;
    for (int i = 0; i < additions[k]; ++i) {
      --depth;
      const float* left = values[depth - 1];
      const float* right = values[depth];
      float* sum = depth == 1 ? out + first : memory.data() + static_cast<int64_t>(depth - 1) * tree_block;
#pragma omp simd
      for (int64_t e = 0; e < count; ++e) sum[e] = left[e] + right[e];
      values[depth - 1] = sum;
    }
  }
}

}  // namespace

void add_tree(const Tensor& out, std::span<const Tensor> in, std::span<const uint8_t> additions, Stream& stream) {
  const ProfileSpan span("add_tree", [&] {
    double bytes = traffic({&out}).bytes;
    for (const Tensor& t : in) bytes += traffic({&t}).bytes;
    return Work{.bytes = bytes};
  });
  check_tree(out, in, additions);
  if (in.size() == 1) {
    if (out.data != in[0].data) copy_on_device(out.data, in[0].data, out.bytes(), stream);
    return;
  }
  float* to = out.as<float>();
  host::parallel_blocks(out.numel(), host::elementwise_block, [=](int64_t begin, int64_t end) {
    for (int64_t first = begin; first < end; first += tree_block) {
      add_tree_block(to, in, additions, first, std::min(tree_block, end - first));
    }
  });
}

void fill(const Tensor& out, float value, Stream&) {
  host::dispatch(out.dtype, [&](auto* tag) {
    auto* to = static_cast<decltype(tag)>(out.data);
    host::parallel_blocks(out.numel(), host::elementwise_block, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) host::store(to + i, value);
    });
  });
}

void fill_integer(const Tensor& out, int64_t value, Stream&) { std::fill_n(out.as<int64_t>(), out.numel(), value); }

namespace {

/// Computes elements 2 pair ... 2 pair + 15 of the stream, times std.
void sixteen_normals(uint64_t key, uint64_t pair, double std, float* out) {
  const host::Philox8 random = host::philox8(key, host::consecutive_counters(0, pair));
  std::array<uint32_t, 8> words[3];
  for (int w = 0; w < 3; ++w) std::memcpy(words[w].data(), &random.v[w], sizeof random.v[w]);
#pragma omp simd
  for (size_t l = 0; l < 8; ++l) {
    const NormalPair numbers = normal_pair(words[0][l], words[1][l], words[2][l]);
    out[2 * l] = static_cast<float>(std * numbers.even);
    out[2 * l + 1] = static_cast<float>(std * numbers.odd);
  }
}

}  // namespace

void fill_normal(const Tensor& out, double std, uint64_t key, int64_t first_element, Stream&) {
  constexpr int64_t group = 16;
  float* to = out.as<float>();
  host::parallel_blocks(out.numel(), host::elementwise_block, [=](int64_t begin, int64_t end) {
    std::array<float, group> numbers;
    for (int64_t i = begin; i < end;) {
      const int64_t element = first_element + i, skipped = element % group;
      const int64_t count = std::min(group - skipped, end - i);
      const auto pair = static_cast<uint64_t>((element - skipped) / 2);
      if (count == group) {
        sixteen_normals(key, pair, std, to + i);
      } else {
        sixteen_normals(key, pair, std, numbers.data());
        std::copy_n(numbers.data() + skipped, count, to + i);
      }
      i += count;
    }
  });
}

void fill_uniform(const Tensor& out, double bound, uint64_t key, int64_t first_element, Stream&) {
  float* to = out.as<float>();
  host::parallel_blocks(out.numel(), host::elementwise_block, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      to[i] = random_between(bound, random_bits(key, 0, static_cast<uint64_t>(first_element + i)));
    }
  });
}

}  // namespace llmtrain
