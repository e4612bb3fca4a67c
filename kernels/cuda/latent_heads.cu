#include "core/profile.hpp"
#include "kernels/cuda/launch.cuh"
#include "kernels/latent_heads.hpp"

namespace llmtrain {

namespace {

using namespace cuda;
using Source = LatentHeads::Source;

template <class T>
struct Assemble {
  T* qkv;
  const T *q, *kv, *low;
  int64_t q_columns, low_columns;
  LatentHeads heads;
  __device__ void operator()(int64_t number) const {
    const int64_t row = number / heads.columns(), at = number % heads.columns();
    const auto [column, source, i] = heads.element(at);
    T value{};
    if (source == Source::query) value = q[row * q_columns + i];
    if (source == Source::key_value) value = kv[row * heads.key_columns() + i];
    if (source == Source::shared) value = low[(row + 1) * low_columns - heads.rotated + i];
    qkv[row * heads.columns() + column] = value;
  }
};

/// Numbers beyond the columns of a row are those of the sums over heads.
template <class T, class U>
struct TakeApart {
  T *dq, *dkv;
  U* dlow;
  const T* dqkv;
  int64_t q_columns, low_columns;
  LatentHeads heads;
  __device__ void operator()(int64_t number) const {
    const int64_t of_row = heads.columns() + heads.rotated, row = number / of_row, at = number % of_row;
    const T* in = dqkv + row * heads.columns();
    if (at < heads.columns()) {
      const auto [column, source, from] = heads.element(at);
      if (source == Source::query) dq[row * q_columns + from] = in[column];
      if (source == Source::key_value) dkv[row * heads.key_columns() + from] = in[column];
      return;
    }
    const int64_t i = at - heads.columns();
    const T* keys = in + heads.query_columns() + heads.place_of_rotated(i);
    float sum = 0;
    for (int64_t head = 0; head < heads.heads; ++head) sum += load(keys + head * heads.width());
    store(dlow + (row + 1) * low_columns - heads.rotated + i, sum);
  }
};

template <class T, class U>
struct CopyColumns {
  T* to;
  const U* from;
  int64_t to_columns, from_columns, columns;
  __device__ void operator()(int64_t number) const {
    const int64_t row = number / columns, column = number % columns;
    store(to + row * to_columns + column, load(from + row * from_columns + column));
  }
};

}  // namespace

void latent_heads_forward(const Tensor& qkv, const Tensor& q, const Tensor& kv, const Tensor& low,
                          const LatentHeads& heads, Stream& stream) {
  const ProfileSpan span("latent_heads_forward", [&] { return traffic({&qkv, &qkv}); });
  check_latent_heads(qkv, q, kv, low, heads);
  LLMTRAIN_CHECK(low.dtype == qkv.dtype, "latent heads: one dtype");
  dispatch(qkv, [&]<class T>(T* out) {
    for_each(qkv.numel(), stream, Assemble<T>{out, q.as<T>(), kv.as<T>(), low.as<T>(), q.dim(1), low.dim(1), heads});
  });
}

void latent_heads_backward(const Tensor& dq, const Tensor& dkv, const Tensor& dlow, const Tensor& dqkv,
                           const LatentHeads& heads, Stream& stream) {
  const ProfileSpan span("latent_heads_backward", [&] { return traffic({&dqkv, &dqkv}); });
  check_latent_heads(dqkv, dq, dkv, dlow, heads);
  dispatch(dqkv, dlow, [&]<class T, class U>(const T* in, U* sums) {
    for_each(dqkv.dim(0) * (heads.columns() + heads.rotated), stream,
             TakeApart<T, U>{dq.as<T>(), dkv.as<T>(), sums, in, dq.dim(1), dlow.dim(1), heads});
  });
}

void copy_columns(const Tensor& to, int64_t to_first, const Tensor& from, int64_t from_first, int64_t columns,
                  Stream& stream) {
  const ProfileSpan span("copy_columns", [&] { return traffic({&to, &from}); });
  check_columns(to, to_first, from, from_first, columns);
  dispatch(to, from, [&]<class T, class U>(T* out, const U* in) {
    for_each(to.dim(0) * columns, stream,
             CopyColumns<T, U>{out + to_first, in + from_first, to.dim(1), from.dim(1), columns});
  });
}

}  // namespace llmtrain
