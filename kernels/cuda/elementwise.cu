#include <array>

#include "core/random_normal.hpp"
#include "kernels/cuda/dropout_row.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/elementwise.hpp"

namespace llmtrain {

namespace {

using namespace cuda;

// Elements per thread: memory bandwidth depends on the bytes that one thread requests at a time.
constexpr int64_t neighbours = 8;
using Some = PackOf<neighbours>;

template <class F>
void for_neighbours(int64_t elements, Stream& stream, const F& f) {
  for_each((elements + neighbours - 1) / neighbours, stream, f);
}

template <class T>
struct ResidualAdd {
  float* out;
  const float* in;
  const T* delta;
  RowDropout rows;
  int64_t elements;
  __device__ void operator()(int64_t pack) const {
    const int64_t i = pack * neighbours;
    Some sum = load_pack<neighbours>(in, i, elements);
    const Some d = load_pack<neighbours>(delta, i, elements);
    const Some factors = rows.scales_at<neighbours>(i, elements);
    for (int k = 0; k < neighbours; ++k) sum.v[k] = fmaf(factors.v[k], d.v[k], sum.v[k]);
    store_pack(out, i, elements, sum);
  }
};

template <class T>
struct ResidualAddBackward {
  T* ddelta;
  const float* dout;
  RowDropout rows;
  int64_t elements;
  __device__ void operator()(int64_t pack) const {
    const int64_t i = pack * neighbours;
    Some d = load_pack<neighbours>(dout, i, elements);
    const Some factors = rows.scales_at<neighbours>(i, elements);
    for (int k = 0; k < neighbours; ++k) d.v[k] *= factors.v[k];
    store_pack(ddelta, i, elements, d);
  }
};

template <class To, class From>
struct Cast {
  To* out;
  const From* in;
  int64_t elements;
  __device__ void operator()(int64_t pack) const {
    const int64_t i = pack * neighbours;
    store_pack(out, i, elements, load_pack<neighbours>(in, i, elements));
  }
};

template <class To, class Bias>
struct AddBias {
  To* out;
  const float* sum;
  const Bias* bias;
  int64_t columns;
  __device__ void operator()(int64_t i) const { store(out + i, sum[i] + load(bias + i % columns)); }
};

struct AddInto {
  float* out;
  const float* in;
  int64_t elements;
  __device__ void operator()(int64_t pack) const {
    const int64_t i = pack * neighbours;
    Some sum = load_pack<neighbours>(out, i, elements);
    const Some d = load_pack<neighbours>(in, i, elements);
    for (int k = 0; k < neighbours; ++k) sum.v[k] += d.v[k];
    store_pack(out, i, elements, sum);
  }
};

struct AddTo {
  float* out;
  const float* left;
  const float* right;
  int64_t elements;
  __device__ void operator()(int64_t pack) const {
    const int64_t i = pack * neighbours;
    Some sum = load_pack<neighbours>(left, i, elements);
    const Some d = load_pack<neighbours>(right, i, elements);
    for (int k = 0; k < neighbours; ++k) sum.v[k] += d.v[k];
    store_pack(out, i, elements, sum);
  }
};

template <class T>
struct Fill {
  T* out;
  float value;
  __device__ void operator()(int64_t i) const { store(out + i, value); }
};

struct FillInteger {
  int64_t* out;
  int64_t value;
  __device__ void operator()(int64_t i) const { out[i] = value; }
};

struct FillNormal {
  float* out;
  double std;
  uint64_t key;
  int64_t first;
  __device__ void operator()(int64_t i) const {
    out[i] = static_cast<float>(std * random_normal(key, static_cast<uint64_t>(first + i)));
  }
};

struct FillUniform {
  float* out;
  double bound;
  uint64_t key;
  int64_t first;
  __device__ void operator()(int64_t i) const {
    out[i] = random_between(bound, random_bits(key, 0, static_cast<uint64_t>(first + i)));
  }
};

void check_rows(const Tensor& stream_tensor, const Tensor& branch, const Batch& batch) {
  LLMTRAIN_CHECK(stream_tensor.rank == 2 && branch.rank == 2 && stream_tensor.shape == branch.shape &&
                     stream_tensor.dim(0) == batch.tokens && stream_tensor.dtype == DType::f32,
                 "residual stream: fp32 [N, C] of the batch");
}

}  // namespace

void residual_add(const Tensor& out, const Tensor& in, const Tensor& delta, const Batch& batch, const Dropout& dropout,
                  Stream& stream) {
  check_rows(in, delta, batch);
  check_rows(out, delta, batch);
  const RowDropout rows(dropout, batch, in.dim(1));
  dispatch(delta, [&]<class T>(T* branch) {
    for_neighbours(in.numel(), stream, ResidualAdd<T>{out.as<float>(), in.as<float>(), branch, rows, in.numel()});
  });
}

void residual_add_backward(const Tensor& ddelta, const Tensor& dout, const Batch& batch, const Dropout& dropout,
                           Stream& stream) {
  check_rows(dout, ddelta, batch);
  const RowDropout rows(dropout, batch, dout.dim(1));
  dispatch(ddelta, [&]<class T>(T* to) {
    for_neighbours(dout.numel(), stream, ResidualAddBackward<T>{to, dout.as<float>(), rows, dout.numel()});
  });
}

void cast(const Tensor& out, const Tensor& in, Stream& stream) {
  LLMTRAIN_CHECK(out.numel() == in.numel(), "cast: one element for each");
  if (out.dtype == in.dtype) {
    copy_on_device(out.data, in.data, in.bytes(), stream);
    return;
  }
  dispatch(out, [&]<class To>(To* to) {
    dispatch(in, [&]<class From>(From* from) {
      for_neighbours(out.numel(), stream, Cast<To, From>{to, from, out.numel()});
    });
  });
}

void add_bias(const Tensor& out, const Tensor& sum, const Tensor& bias, Stream& stream) {
  if (bias.empty()) return cast(out, sum, stream);
  check_bias(out, sum, bias);
  dispatch(out, bias, [&]<class To, class Bias>(To* to, Bias* added) {
    for_each(sum.numel(), stream, AddBias<To, Bias>{to, sum.as<float>(), added, sum.dim(1)});
  });
}

void add_in_order(const Tensor& out, std::span<const Tensor> in, bool first, Stream& stream) {
  for (const Tensor& t : in) {
    LLMTRAIN_CHECK(out.numel() == t.numel() && out.dtype == DType::f32 && t.dtype == DType::f32,
                   "add_in_order: fp32, one element for each");
    if (first && &t == in.data()) {
      copy_on_device(out.data, t.data, t.bytes(), stream);
    } else {
      for_neighbours(out.numel(), stream, AddInto{out.as<float>(), t.as<float>(), out.numel()});
    }
  }
}

void add_tree(const Tensor& out, std::span<const Tensor> in, std::span<const uint8_t> additions, Stream& stream) {
  check_tree(out, in, additions);
  if (in.size() == 1 && out.data != in[0].data) copy_on_device(out.data, in[0].data, out.bytes(), stream);
  std::array<float*, max_tree_depth> values{};
  size_t depth = 0;
  for (size_t k = 0; k < in.size(); ++k) {
    values[depth++] = in[k].as<float>();
    for (int i = 0; i < additions[k]; ++i) {
      --depth;
      float* sum = depth == 1 ? out.as<float>() : values[depth - 1];
      for_neighbours(out.numel(), stream, AddTo{sum, values[depth - 1], values[depth], out.numel()});
      values[depth - 1] = sum;
    }
  }
}

void fill(const Tensor& out, float value, Stream& stream) {
  dispatch(out, [&]<class T>(T* to) { for_each(out.numel(), stream, Fill<T>{to, value}); });
}

void fill_integer(const Tensor& out, int64_t value, Stream& stream) {
  for_each(out.numel(), stream, FillInteger{out.as<int64_t>(), value});
}

void fill_normal(const Tensor& out, double std, uint64_t key, int64_t first_element, Stream& stream) {
  for_each(out.numel(), stream, FillNormal{out.as<float>(), std, key, first_element});
}

void fill_uniform(const Tensor& out, double bound, uint64_t key, int64_t first_element, Stream& stream) {
  for_each(out.numel(), stream, FillUniform{out.as<float>(), bound, key, first_element});
}

}  // namespace llmtrain
