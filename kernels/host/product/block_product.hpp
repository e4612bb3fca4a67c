#pragma once
// Small matrix products on one thread: the inner step of blocked attention. oneDNN's micro-kernels on processors with
// AVX-512 (bf16 ones with avx512_bf16 or AMX), plain C++ elsewhere.

#include <compare>
#include <cstdint>

#include "core/dtype.hpp"

namespace llmtrain::host {

/// C[m, n] = (or +=) A[m, k] B[k, n]; m, n multiples of 16, k even. A and B have one dtype, C is fp32; all contiguous.
/// A and C are row-major. B is row-major in fp32; in bf16 rows come in pairs, [k / 2][n][2].
struct BlockShape {
  DType dtype = DType::f32;  ///< fp32 or bf16
  int m = 0;
  int n = 0;
  int k = 0;
  bool accumulate = false;
  auto operator<=>(const BlockShape&) const = default;  // NOLINT(modernize-use-nullptr): not written here
};

class BlockProduct {
 public:
  /// Bytes of scratch memory per call; 64-byte aligned, one per thread.
  static constexpr int64_t scratch_bytes = 64 << 10;

  /// Returns the product of a shape, created once, on the path of product_path.hpp. A bf16 shape is an error if there
  /// is no native product. Every thread must call leave_micro_kernels() after its last product.
  static const BlockProduct& get(const BlockShape& shape);

  virtual ~BlockProduct() = default;
  virtual void run(const void* a, const void* b, float* c, void* scratch) const = 0;
};

}  // namespace llmtrain::host
