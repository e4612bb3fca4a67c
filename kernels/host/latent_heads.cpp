#include "kernels/latent_heads.hpp"

#include "core/profile.hpp"
#include "kernels/host/element.hpp"
#include "kernels/host/parallel.hpp"

namespace llmtrain {

using Source = LatentHeads::Source;

void latent_heads_forward(const Tensor& qkv, const Tensor& q, const Tensor& kv, const Tensor& low,
                          const LatentHeads& heads, Stream& /*stream*/) {
  const ProfileSpan span("latent_heads_forward", [&] { return traffic({&qkv, &qkv}); });
  check_latent_heads(qkv, q, kv, low, heads);
  LLMTRAIN_CHECK(low.dtype == qkv.dtype, "latent heads: one dtype");
  host::dispatch(qkv.dtype, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    host::parallel_for(qkv.dim(0), [&](int64_t row) {
      T* out = qkv.as<T>() + row * qkv.dim(1);
      const T* queries = q.as<T>() + row * q.dim(1);
      const T* keys_values = kv.as<T>() + row * kv.dim(1);
      const T* shared = low.as<T>() + (row + 1) * low.dim(1) - heads.rotated;
      for (int64_t at = 0; at < heads.columns(); ++at) {
        const auto [column, source, i] = heads.element(at);
        const T* from = source == Source::query ? queries : source == Source::shared ? shared : keys_values;
        out[column] = source == Source::none ? T() : from[i];
      }
    });
  });
}

void latent_heads_backward(const Tensor& dq, const Tensor& dkv, const Tensor& dlow, const Tensor& dqkv,
                           const LatentHeads& heads, Stream& /*stream*/) {
  const ProfileSpan span("latent_heads_backward", [&] { return traffic({&dqkv, &dqkv}); });
  check_latent_heads(dqkv, dq, dkv, dlow, heads);
  host::dispatch(dqkv, dlow, [&](auto* tag, auto* sums) {
    using T = std::remove_pointer_t<decltype(tag)>;
    host::parallel_for(dqkv.dim(0), [&](int64_t row) {
      const T* in = dqkv.as<T>() + row * dqkv.dim(1);
      T* queries = dq.as<T>() + row * dq.dim(1);
      T* keys_values = dkv.as<T>() + row * dkv.dim(1);
      auto* shared = sums + (row + 1) * dlow.dim(1) - heads.rotated;
      for (int64_t at = 0; at < heads.columns(); ++at) {
        const auto [column, source, i] = heads.element(at);
        if (source == Source::query) queries[i] = in[column];
        if (source == Source::key_value) keys_values[i] = in[column];
      }
      for (int64_t i = 0; i < heads.rotated; ++i) {
        const T* keys = in + heads.query_columns() + heads.place_of_rotated(i);
        float sum = 0;
        for (int64_t head = 0; head < heads.heads; ++head) sum += host::load(keys + head * heads.width());
        host::store(shared + i, sum);
      }
    });
  });
}

void copy_columns(const Tensor& to, int64_t to_first, const Tensor& from, int64_t from_first, int64_t columns,
                  Stream& /*stream*/) {
  const ProfileSpan span("copy_columns", [&] { return traffic({&to, &from}); });
  check_columns(to, to_first, from, from_first, columns);
  host::dispatch(to, from, [&](auto* out, auto* in) {
    host::parallel_for(to.dim(0), [&](int64_t row) {
      for (int64_t c = 0; c < columns; ++c) {
        host::store(out + row * to.dim(1) + to_first + c, host::load(in + row * from.dim(1) + from_first + c));
      }
    });
  });
}

}  // namespace llmtrain
