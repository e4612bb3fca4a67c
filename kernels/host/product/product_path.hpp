#pragma once
// Which kernels multiply matrices on this processor: the one place where that is decided.

#include <cstdint>

#include "core/dtype.hpp"

namespace llmtrain::host {

/// native: bf16 operands stay bf16 (AMX, or dot products of pairs); wide: they become fp32 while they are packed, as
/// fp16 operands always do;
/// plain: no micro-kernels at all, as on processors without AVX-512. `automatic` takes what is fastest here. A path
/// that the processor does not have falls to the next one.
enum class ProductPath : uint8_t { automatic, native, wide, plain };

/// While one lives, products take this path. For tests and benchmarks; not to be nested.
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
  bool micro;      ///< oneDNN's micro-kernels; else fp32 without them
};

/// For a product of `rows` rows with operands stored as `input`. Depends on the processor and on the arguments alone.
ProductKernels product_kernels(DType input, int64_t rows);

}  // namespace llmtrain::host
