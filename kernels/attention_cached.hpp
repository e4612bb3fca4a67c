#pragma once
// Attention of new tokens to the stored keys and values of their own sequence, for generation.

#include "core/batch.hpp"
#include "device/device.hpp"
#include "kernels/attention.hpp"

namespace llmtrain {

/// Copies keys and values of qkv [N, (H + 2 G) D] into cache [S, P, 2 G D] (keys, then values of a position; one
/// dtype): row n goes to sequence_ids[n] < S, positions[n] < P. A row beyond them is an error; on
/// a GPU, where the host does not look at them, it is not stored, and what attends to it is NaN.
void cache_keys_values(const Tensor& cache, const Tensor& qkv, const Batch& batch, const AttentionShape& shape,
                       Stream& stream);

/// out [N, H D], in qkv's dtype: query n attends to positions 0..positions[n] of cache[sequence_ids[n]], of which the
/// window, if any, leaves the last ones; its own must be stored already. Softmax and sums in fp32. Of the batch only
/// `tokens`, `positions` and `sequence_ids` are read.
void attention_cached(const Tensor& out, const Tensor& qkv, const Tensor& cache, const Batch& batch,
                      const AttentionShape& shape, Stream& stream);

}  // namespace llmtrain
