#include "kernels/host/product/product_path.hpp"

#include <atomic>

#include "device/device.hpp"
#include "kernels/host/product/gemm_tile.hpp"

namespace llmtrain::host {

namespace {

/// Up to this many rows a product is limited by reading its weights: reading them as bf16 is better than the faster
/// arithmetic.
constexpr int64_t thin_rows = 32;

std::atomic<ProductPath> forced{ProductPath::automatic};

bool available(DType dtype) {
  static const bool fp32 = have_micro_kernels(DType::f32), half = have_micro_kernels(DType::bf16);
  return dtype == DType::bf16 ? half : fp32;
}

}  // namespace

ForcedProductPath::ForcedProductPath(ProductPath path) { forced = path; }
ForcedProductPath::~ForcedProductPath() { forced = ProductPath::automatic; }
ProductPath forced_product_path() { return forced; }

ProductKernels product_kernels(DType input, int64_t rows) {
  static const bool fast_bf16 = device_fast_bf16();
  const ProductPath path = forced;
  const bool wanted =
      path == ProductPath::native || (path == ProductPath::automatic && (fast_bf16 || rows <= thin_rows));
  if (input == DType::bf16 && wanted && available(DType::bf16)) return {DType::bf16, true};
  return {DType::f32, path != ProductPath::plain && available(DType::f32)};
}

bool has_byte_kernels() {
  static const bool available_here = have_micro_kernels(DType::u8);
  return forced != ProductPath::plain && available_here;
}

}  // namespace llmtrain::host
