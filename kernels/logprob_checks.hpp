#pragma once
// Checks of the arguments of token statistics, the same on every device.

#include "core/host_device.hpp"
#include "kernels/logprob.hpp"

namespace llmtrain {

template <class T>
T* data_or_null(const Tensor& t) {
  return t.empty() ? nullptr : t.as<T>();
}

/// Word of 32 bits that begins at this bit of a row of words; bits past the row are 0.
LLMTRAIN_HOST_DEVICE inline uint32_t bits_from(const uint32_t* words, int64_t count, int64_t bit) {
  const int64_t word = bit / 32, shift = bit % 32;
  const uint32_t low = words[word] >> shift;
  return shift == 0 || word + 1 >= count ? low : low | words[word + 1] << (32 - shift);
}

inline void check_per_row(const Tensor& per_row, int64_t rows, DType dtype) {
  LLMTRAIN_CHECK(per_row.empty() || (per_row.numel() == rows && per_row.dtype == dtype),
                 "per-row statistics must be [R] of their dtype");
}

inline void check_softcap(const Tensor& logits, float cap) {
  LLMTRAIN_CHECK(logits.dtype == DType::f32 && cap > 0, "fp32 logits and a positive cap");
}

inline void check_range(const Tensor& x, const TokenRange& tokens) {
  LLMTRAIN_CHECK(x.rank == 2 && tokens.vocabulary > 0 && tokens.first >= 0 && tokens.count >= 0 &&
                     tokens.count <= x.dim(1) && tokens.first + tokens.count <= tokens.vocabulary,
                 "fewer columns than tokens of the vocabulary");
}

inline void check_tempered(const Tensor& x, float temperature, const Tensor& kept, const TokenRange& tokens) {
  check_range(x, tokens);
  LLMTRAIN_CHECK(temperature > 0, "a temperature of logits must be positive");
  LLMTRAIN_CHECK(kept.empty() || (kept.rank == 2 && kept.dtype == DType::u32 && kept.dim(0) == x.dim(0) &&
                                  kept.dim(1) == (tokens.vocabulary + 31) / 32),
                 "kept tokens are uint32 [R, ceil(V / 32)]");
}

inline void check_logits(const Tensor& logits, const Tensor& targets, const TokenStatistics& s,
                         const TokenRange& tokens) {
  LLMTRAIN_CHECK(logits.rank == 2 && logits.dtype == DType::f32, "logits must be fp32 [R, V']");
  check_range(logits, tokens);
  LLMTRAIN_CHECK(targets.dtype == DType::i32 && targets.numel() == logits.dim(0), "targets must be int32 [R]");
  for (const Tensor* t : {&s.logp, &s.lse, &s.entropy, &s.uniform}) check_per_row(*t, logits.dim(0), DType::f32);
  check_per_row(s.argmax, logits.dim(0), DType::i32);
}

inline void check_parts(const Tensor& parts, int64_t blocks, int64_t rows) {
  LLMTRAIN_CHECK(parts.dtype == DType::u8 && parts.bytes() == blocks * rows * static_cast<int64_t>(sizeof(LogprobPart)),
                 "a part for each row of each block");
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
