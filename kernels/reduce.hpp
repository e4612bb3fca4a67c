#pragma once
// Sums that do not depend on the division of the data: fp64 partial sums over fixed 256-element chunks, added exactly.

#include "core/exact_sum.hpp"
#include "core/tensor.hpp"
#include "device/device.hpp"

namespace llmtrain {

// A sum is an ExactSum, or its integers on the device, int64 [ExactSum::integer_count], which lets the host continue
// without waiting. At most 2^30 chunks or products may be added before the integers are carried.

/// sum += squares of x (fp32; all chunks but the last have 256 elements).
void sum_of_squares(ExactSum& sum, const Tensor& x, Stream& stream);
void sum_of_squares(const Tensor& sum, const Tensor& x, Stream& stream);
/// sum += x[i] * weights[i] in fp64, each product added exactly; fp32 [n]; empty weights are ones.
void sum_of_products(ExactSum& sum, const Tensor& x, const Tensor& weights, Stream& stream);
void sum_of_products(const Tensor& sum, const Tensor& x, const Tensor& weights, Stream& stream);
/// 64-bit hash of x's bytes by 256-element chunk, combined with the chunk's global index: the hash of a sharded tensor
/// is the wrapping sum of the shards' hashes. first_element is the shard's offset, a multiple of 256.
uint64_t chunked_hash(const Tensor& x, int64_t first_element, Stream& stream);

}  // namespace llmtrain
