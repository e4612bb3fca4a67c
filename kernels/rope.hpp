#pragma once
#include "core/tensor.hpp"
#include "device/device.hpp"

namespace llmtrain {

/// Rotary embedding (Su et al. 2021), Hugging Face's half-split order: element i pairs with i + D/2.
/// table fp32 [P, D]: cos for D/2 frequencies, then sin. Fills it for positions 0..P-1 from inverse frequencies [D/2]
/// (fp64 on the host, theta^(-2i/D)); computed in double, rounded once.
void rope_table(const Tensor& table, const double* inverse_frequencies, Stream& stream);

/// Rotates in place the first `rotated_heads` heads of each row of qkv [N, heads * D] (queries and keys come first) by
/// its position; inverse = the transpose, for the backward pass. positions int32 [N].
void rope_apply(const Tensor& qkv, const Tensor& table, const Tensor& positions, int64_t rotated_heads,
                int64_t head_dim, bool inverse, Stream& stream);

}  // namespace llmtrain
