#pragma once
// Selection of the matrix product kernels for this processor, in one place.

#include <cstdint>

#include "core/dtype.hpp"

namespace llmtrain::host {

/// native: bf16 operands stay bf16 (AMX, or dot products of pairs); wide: they are converted to fp32 while packed, like
/// fp16 operands always; plain: no micro-kernels, as on processors without AVX-512. `automatic` selects the fastest. A
/// path that the processor lacks falls back to the next one.
enum class ProductPath : uint8_t { automatic, native, wide, plain };

/// Forces a path for products during its lifetime. For tests and benchmarks; not to be nested.
class ForcedProductPath {
 public:
  explicit ForcedProductPath(ProductPath path);
  ~ForcedProductPath();
  ForcedProductPath(const ForcedProductPath&) = delete;
  ForcedProductPath& operator=(const ForcedProductPath&) = delete;
};
ProductPath forced_product_path();

struct ProductKernels {
  DType operands;  ///< fp32 or bf16, once packed
  bool micro;      ///< true: oneDNN's micro-kernels; false: fp32 without them
};

/// Path for a product of `rows` rows with operands stored as `input`. It depends only on the processor and the
/// arguments.
ProductKernels product_kernels(DType input, int64_t rows);
/// True if products of bytes have micro-kernels here.
bool has_byte_kernels();

}  // namespace llmtrain::host
