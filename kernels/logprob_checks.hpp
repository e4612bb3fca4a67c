#pragma once
// Checks of the arguments of token statistics, the same on every device.

#include "kernels/logprob.hpp"

namespace llmtrain {

template <class T>
T* data_or_null(const Tensor& t) {
  return t.empty() ? nullptr : t.as<T>();
}

inline void check_per_row(const Tensor& per_row, int64_t rows, DType dtype) {
  LLMTRAIN_CHECK(per_row.empty() || (per_row.numel() == rows && per_row.dtype == dtype),
                 "per-row statistics must be [R] of their dtype");
}

inline void check_softcap(const Tensor& logits, float cap) {
  LLMTRAIN_CHECK(logits.dtype == DType::f32 && cap > 0, "fp32 logits and a positive cap");
}

inline void check_tempered(const Tensor& x, float temperature, const Tensor& kept, int64_t vocabulary) {
  LLMTRAIN_CHECK(x.rank == 2 && vocabulary > 0 && vocabulary <= x.dim(1), "fewer columns than the vocabulary");
  LLMTRAIN_CHECK(temperature > 0, "a temperature of logits must be positive");
  LLMTRAIN_CHECK(kept.empty() || (kept.rank == 2 && kept.dtype == DType::u32 && kept.dim(0) == x.dim(0) &&
                                  kept.dim(1) == (vocabulary + 31) / 32),
                 "kept tokens are uint32 [R, ceil(V / 32)]");
}

inline void check_logits(const Tensor& logits, const Tensor& targets, const TokenStatistics& s, int64_t vocabulary) {
  LLMTRAIN_CHECK(logits.rank == 2 && logits.dtype == DType::f32, "logits must be fp32 [R, V']");
  LLMTRAIN_CHECK(vocabulary > 0 && vocabulary <= logits.dim(1), "logits have fewer columns than the vocabulary");
  LLMTRAIN_CHECK(targets.dtype == DType::i32 && targets.numel() == logits.dim(0), "targets must be int32 [R]");
  for (const Tensor* t : {&s.logp, &s.lse, &s.entropy, &s.uniform}) check_per_row(*t, logits.dim(0), DType::f32);
  check_per_row(s.argmax, logits.dim(0), DType::i32);
}

inline void check_logits_gradient(const Tensor& dlogits, const Tensor& logits, const TokenStatistics& statistics,
                                  const TokenCotangents& cotangents) {
  const int64_t rows = logits.dim(0);
  for (const Tensor* t :
       {&cotangents.logp, &cotangents.lse, &cotangents.entropy, &cotangents.uniform, &cotangents.lse_squared}) {
    check_per_row(*t, rows, DType::f32);
  }
  LLMTRAIN_CHECK(dlogits.rank == 2 && dlogits.dim(0) == rows && dlogits.dim(1) == logits.dim(1),
                 "dlogits must have the shape of logits");
  LLMTRAIN_CHECK(dlogits.dtype == DType::f32 || dlogits.data != logits.data, "16-bit dlogits need memory of their own");
  LLMTRAIN_CHECK(!statistics.lse.empty(), "the backward pass needs lse");
  LLMTRAIN_CHECK(cotangents.entropy.empty() || !statistics.entropy.empty(), "the entropy's gradient needs the entropy");
}

}  // namespace llmtrain
