#pragma once
// Exact attention in blocks (FlashAttention, Dao et al. 2022 and 2023): memory linear in the sequence, block-diagonal
// over the batch's segments, causal, blocks outside the causal, segment or window mask are skipped.

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
  /// Tokens of the longest segment that will come, where the caller knows it and wants a library's attention for
  /// batches of such segments only; 0 = does not.
  int64_t longest = 0;
};

/// The library, with its version, whose attention is taken where the shapes allow it: "cuDNN 9.19.0"; empty: always
/// ours. UserError(missing_input) where the environment asks for one that is not there.
std::string attention_library();

/// Bytes of workspace either pass wants for N rows on this machine.
int64_t attention_workspace_bytes(const AttentionShape& shape, int64_t rows);

/// What these bytes take for granted of a library that another machine may have, or lack; empty where it would not
/// change them.
std::string attention_assumption(const AttentionShape& shape, int64_t rows);

/// qkv [N, (H + 2 G) D]: queries, keys, values of a row. out [N, H D] in qkv's dtype; lse fp32 [H, N] is
/// log(sum exp(score)), kept for the backward pass (in the order that a library's attention wants, where one is taken).
/// Softmax and accumulation in fp32. Dropout acts on the probabilities (after normalisation); sequence = sequence_ids
/// of the query row, element = (h * 2^24 + sequence_offsets[query]) * 2^24 + sequence_offsets[key].
void attention_forward(const Tensor& out, const Tensor& lse, const Tensor& qkv, const Batch& batch,
                       const AttentionShape& shape, const Dropout& dropout, const Tensor& workspace, Stream& stream);

/// dqkv (like qkv) from dout [N, H D]. Sums over query heads of a group and over key blocks have a fixed order.
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
