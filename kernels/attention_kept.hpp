#pragma once
// A cache that keeps some of the keys of each text: heavy hitters and the last keys (H2O, Zhang et al. 2023), or the
// first and the last ones (StreamingLLM, Xiao et al. 2024). Keys stay rotated by their positions in the text. The rows
// of a cache are places: that of a key follows from the text alone, so that the bits of a row do not depend on others.

#include "core/batch.hpp"
#include "device/device.hpp"
#include "kernels/attention.hpp"

namespace llmtrain {

/// The keys that one layer keeps. A text of no more tokens than its budget has every key at its position. Else there
/// are `budget` keys between two tokens, and one place, the hole, is free for the next one.
struct KeptKeys {
  Tensor cache;  ///< [S, P, 2 G D]
  Tensor sums;   ///< fp32 [S, G, P]: sums of the attention probabilities of all queries so far, over the query heads
                 ///< of a key head
  Tensor positions;    ///< int32 [S, G, P] of the keys in their text
  Tensor holes;        ///< int32 [S, G]
  Tensor budgets;      ///< int32 [S, 2] of each text: keys that are kept, below P or never reached; the last among them
  int64_t sinks = -1;  ///< -1: beside the last keys those with the largest sums are kept, the earlier of equals; else
                       ///< the first `sinks` ones
};

/// Keeps keys of whole prompts, the segments of the batch, after their attention: qkv [N, (H + 2 G) D], lse fp32
/// [H, N].
void keep_prompt_keys(const KeptKeys& kept, const Tensor& qkv, const Tensor& lse, const Batch& batch,
                      const AttentionShape& shape, Stream& stream);

/// Stores the key of one new token of each text in its place. counts int32 [N] becomes the number of keys less one, the
/// `positions` with which attention_cached() reads them.
void store_kept_keys(const KeptKeys& kept, const Tensor& counts, const Tensor& qkv, const Batch& batch,
                     const AttentionShape& shape, Stream& stream);

/// Adds the probabilities of the new tokens' queries to the sums, then makes a hole where a text exceeds its budget.
void weigh_kept_keys(const KeptKeys& kept, const Tensor& counts, const Tensor& qkv, const Batch& batch,
                     const AttentionShape& shape, Stream& stream);

}  // namespace llmtrain
