#pragma once
// Attention of new tokens to the cached keys and values of their own sequence, for generation.

#include "core/batch.hpp"
#include "device/device.hpp"
#include "kernels/attention.hpp"
#include "kernels/matmul.hpp"

namespace llmtrain {

/// Copies keys and values of qkv [N, (H + 2 G) D] into cache [S, P, 2 G D] (keys, then values of a position; one
/// dtype): row n goes to sequence_ids[n] < S, positions[n] < P. An index out of range is an error on the host. On a
/// GPU, where the host does not see the indices, the row is not stored, and attention to it gives NaN.
void cache_keys_values(const Tensor& cache, const Tensor& qkv, const Batch& batch, const AttentionShape& shape,
                       Stream& stream);

/// out [N, H D], in qkv's dtype, and lse, fp32 [H, N], the logarithms of sums as of attention_forward: query n attends
/// to positions 0..positions[n] of cache[sequence_ids[n]], or to the last ones of these within the window; its own
/// position must be stored already. Softmax and sums in fp32. Only `tokens`, `positions` and `sequence_ids` of the
/// batch are used. The order of sums depends only on the query's position. It gives, bit for bit, what
/// attention_forward (without dropout, with longest = 0) gives to that row of the whole sequence; but on a GPU decoding
/// has an order of its own, which is fast for few queries.
void attention_cached(const Tensor& out, const Tensor& lse, const Tensor& qkv, const Tensor& cache, const Batch& batch,
                      const AttentionShape& shape, ProductRole role, Stream& stream);

}  // namespace llmtrain
