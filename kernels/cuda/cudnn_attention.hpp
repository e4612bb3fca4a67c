#pragma once
// cuDNN's attention, which replaces the built-in one if it is installed, supports the problem, and is expected to be
// faster. The choice is a function of the shapes, the kind of GPU, the library and LLMTRAIN_ATTENTION, never of timing.

#include "kernels/attention.hpp"
#include "kernels/cuda/attention_choice.hpp"

namespace llmtrain::cuda {

/// True for Hopper: the library has kernels for its tensor cores, while the built-in ones target Ampere's. This is
/// expected, not measured on either. On Blackwell the library's backward pass is not known to be deterministic.
constexpr bool cudnn_is_faster(int capability) { return capability == 90; }

/// Maximum number of scores per call. The backward pass stores the scores of a call's sequences: up to 4 GiB. (Tests
/// lower it.)
inline int64_t max_cudnn_scores = int64_t{1} << 31;
/// True if a graph of sequences of shape.longest tokens can express the shape.
inline bool cudnn_suits(const AttentionShape& s) {
  return s.longest > 0 && s.longest % 64 == 0 && s.longest <= max_cudnn_scores / s.heads / s.longest &&
         s.head_dim % 8 == 0 && s.head_dim <= 128 && s.softcap == 0 && (s.window == 0 || s.window >= s.longest);
}
/// True if all segments of the batch have the maximum length.
inline bool is_uniform(const Batch& batch, const AttentionShape& s) {
  return batch.longest_segment == s.longest && batch.segment_count * s.longest == batch.tokens;
}

/// Bytes of workspace of cuDNN's attention for this many rows; 0 if it is not used. UserError(missing_input) if it is
/// required but not installed or not supported.
int64_t cudnn_workspace_bytes(const AttentionShape& shape, int64_t rows);

/// Returns false if cuDNN is not used, for both passes of such a batch. lse is in the library's order, [B, H, T].
bool cudnn_attention_forward(const Tensor& out, const Tensor& lse, const Tensor& qkv, const Batch& batch,
                             const AttentionShape& shape, const Dropout& dropout, const Tensor& workspace,
                             Stream& stream);
bool cudnn_attention_backward(const AttentionBackward& args, const Batch& batch, const AttentionShape& shape,
                              const Dropout& dropout, const Tensor& workspace, Stream& stream);

}  // namespace llmtrain::cuda
