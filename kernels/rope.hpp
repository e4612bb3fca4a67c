#pragma once
#include "core/batch.hpp"
#include "core/tensor.hpp"
#include "device/device.hpp"

namespace llmtrain {

/// Rotary embedding (Su et al. 2021), Hugging Face's half-split order: element i pairs with i + R/2, where R <= D is
/// the number of rotated elements of a head, its first ones. Fills table fp32 [P, R] for positions 0..P-1 from inverse
/// frequencies [R/2] (fp64 on the host): cos for R/2 frequencies, then sin, both times `factor`; computed in double,
/// rounded once.
void rope_table(const Tensor& table, const double* inverse_frequencies, double factor, Stream& stream);

/// Inverse frequencies that depend on the length L of a segment: up to `limit` tokens short_frequencies [R/2]; beyond,
/// long_frequencies [R/2], and with ntk_factor f > 0 frequency i times (f L / limit - (f - 1))^(-2i / (R - 2)).
struct RopeByLength {
  const double* short_frequencies;
  const double* long_frequencies;
  int64_t limit;
  double ntk_factor;
  double factor;  ///< factor on cos and sin
};
/// Fills row n of table [N, R] for row n of the batch.
void rope_table_by_length(const Tensor& table, const RopeByLength& frequencies, const Batch& batch, Stream& stream);

/// Rotates in place the first `rotated_heads` heads of each row of qkv [N, heads * D] (queries and keys come first) by
/// the table's row positions[n] (int32 [N]), or n if positions is empty; inverse = the transpose, for the backward
/// pass.
void rope_apply(const Tensor& qkv, const Tensor& table, const Tensor& positions, int64_t rotated_heads,
                int64_t head_dim, bool inverse, Stream& stream);

}  // namespace llmtrain
