#pragma once
// cuDNN's attention in place of ours, where it is there, can do what is asked, and is expected to be faster. Which of
// the two a call takes is a function of its shapes, the GPU's kind, the library and LLMTRAIN_ATTENTION, never of
// timing.

#include "kernels/attention.hpp"
#include "kernels/cuda/attention_choice.hpp"

namespace llmtrain::cuda {

/// Hopper: the library has kernels of its own for its tensor cores, ours are made for Ampere's. Expected, on neither
/// measured. On Blackwell the library's backward pass is not known to repeat its bits.
constexpr bool cudnn_is_faster(int capability) { return capability == 90; }

/// The scores of the sequences of a call are kept in the backward pass: up to 4 GiB of them. (Tests lower it.)
inline int64_t max_cudnn_scores = int64_t{1} << 31;
/// Whether a graph of sequences of shape.longest tokens says what the shape says.
inline bool cudnn_suits(const AttentionShape& s) {
  return s.longest > 0 && s.longest % 64 == 0 && s.longest <= max_cudnn_scores / s.heads / s.longest &&
         s.head_dim % 8 == 0 && s.head_dim <= 128 && s.softcap == 0 && (s.window == 0 || s.window >= s.longest);
}
/// Whether all segments of the batch are as long as they can be.
inline bool is_uniform(const Batch& batch, const AttentionShape& s) {
  return batch.longest_segment == s.longest && batch.segment_count * s.longest == batch.tokens;
}

/// What cuDNN's attention would want for so many rows; 0 where it is not taken. UserError(missing_input): it was asked
/// for, and is not there or cannot do it.
int64_t cudnn_workspace_bytes(const AttentionShape& shape, int64_t rows);

/// False: not taken, for neither pass of such a batch. lse is the library's own, [B, H, T].
bool cudnn_attention_forward(const Tensor& out, const Tensor& lse, const Tensor& qkv, const Batch& batch,
                             const AttentionShape& shape, const Dropout& dropout, const Tensor& workspace,
                             Stream& stream);
bool cudnn_attention_backward(const AttentionBackward& args, const Batch& batch, const AttentionShape& shape,
                              const Dropout& dropout, const Tensor& workspace, Stream& stream);

}  // namespace llmtrain::cuda
