#pragma once
// Exact attention in tiles (FlashAttention, Dao et al. 2022 and 2023): memory linear in the sequence, block-diagonal
// over the batch's segments, causal. Tiles outside the causal, segment or window mask are skipped.

#include <string>

#include "core/batch.hpp"
#include "device/device.hpp"
#include "kernels/dropout.hpp"

namespace llmtrain {

inline constexpr int64_t max_head_dim = 1024;

struct AttentionShape {
  int64_t heads = 1;     ///< H
  int64_t kv_heads = 1;  ///< G, divides H; query head h reads key head h / (H / G)
  int64_t head_dim = 1;  ///< D, at most max_head_dim
  int64_t window = 0;    ///< key j visible to query i iff i - window < j <= i (Mistral 7B); 0 = all j <= i
  float scale = 1;       ///< usually 1 / sqrt(D)
  float softcap = 0;     ///< c: a score s (scaled) becomes c tanh(s / c) (Gemma 2); 0 = off
  /// Tokens of the longest segment, if the caller knows it and allows a library's attention for batches of such
  /// segments only; 0 = the built-in attention.
  int64_t longest = 0;
  int64_t first_head = 0;  ///< number in the layer of query head 0, where others compute the rest
};

/// Name and version of the library whose attention is used where the shapes allow it: "cuDNN 9.19.0"; empty: the
/// built-in attention only. UserError(missing_input) if the environment requires a library that is not installed.
std::string attention_library();

/// Bytes of workspace for N rows of either pass on this machine.
int64_t attention_workspace_bytes(const AttentionShape& shape, int64_t rows);

/// Library on which these bytes depend and which another machine may lack; empty if they do not depend on one.
std::string attention_assumption(const AttentionShape& shape, int64_t rows);

/// qkv [N, (H + 2 G) D]: queries, keys, values of a row. out [N, H D] in qkv's dtype; lse fp32 [H, N] is log(sum
/// exp(score)), kept for the backward pass (in the library's order if a library computes it). Softmax and accumulation
/// in fp32. The built-in attention gives a row bits that depend only on its place in its segment and on the rows before
/// it there. Dropout acts on the probabilities (after normalisation); sequence = sequence_ids of the query row, element
/// = ((first_head + h) * 2^24 + sequence_offsets[query]) * 2^24 + sequence_offsets[key].
void attention_forward(const Tensor& out, const Tensor& lse, const Tensor& qkv, const Batch& batch,
                       const AttentionShape& shape, const Dropout& dropout, const Tensor& workspace, Stream& stream);

/// Computes dqkv (like qkv) from dout [N, H D]. Sums over query heads of a group and over key blocks have a fixed
/// order.
struct AttentionBackward {
  Tensor dqkv;
  Tensor dout;
  Tensor out;
  Tensor lse;
  Tensor qkv;
};
void attention_backward(const AttentionBackward& args, const Batch& batch, const AttentionShape& shape,
                        const Dropout& dropout, const Tensor& workspace, Stream& stream);

}  // namespace llmtrain
