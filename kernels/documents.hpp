#pragma once
// Sums over documents, and derivatives of objectives over documents. Documents are the first segments of a batch.

#include "core/tensor.hpp"
#include "device/device.hpp"

namespace llmtrain {

/// sums[d] = sum of x[i] * weights[i] over the rows of document d; sums fp64 [D], x and weights fp32 [N], segments
/// int32 [at least D + 1]. In fp64, in an order that depends on the document's length alone: its rows are dealt to 32
/// lanes in turn, and lanes are added as a tree.
void sum_documents(const Tensor& sums, const Tensor& x, const Tensor& weights, const Tensor& segments, Stream& stream);

/// out[i] = factors[d] * weights[i] * scale in the rows of document d, 0 after the last one; out and weights fp32 [N],
/// factors fp32 [D]; scale fp32 [1], or empty for 1.
void spread_documents(const Tensor& out, const Tensor& factors, const Tensor& weights, const Tensor& segments,
                      const Tensor& scale, Stream& stream);

}  // namespace llmtrain
