#include "kernels/host/product/block_product.hpp"

#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "core/error.hpp"
#include "device/processor.hpp"
#include "kernels/host/lanes.hpp"
#include "kernels/host/product/gemm_tile.hpp"
#include "kernels/host/product/product_path.hpp"

namespace llmtrain::host {

namespace {

/// Calls oneDNN's micro-kernel. Products of several shapes alternate: each call configures the tiles of AMX, if there
/// are any.
class MicroProduct final : public BlockProduct {
 public:
  explicit MicroProduct(std::unique_ptr<TileKernel> kernel)
      : kernel_(std::move(kernel)), has_tiles_(processor_has(Instructions::amx)) {
    LLMTRAIN_CHECK(kernel_->scratch_bytes() <= scratch_bytes,
                   "a micro-kernel needs more scratch memory than is planned");
  }

  void run(const void* a, const void* b, float* c, void* scratch) const override {
    if (has_tiles_) kernel_->configure_thread();
    LLMTRAIN_CHECK(kernel_->run(a, b, c, scratch, 0), "a oneDNN micro-kernel failed");
  }

 private:
  std::unique_ptr<TileKernel> kernel_;
  bool has_tiles_;
};

/// C[R, 16] of one register tile: R x 2 vectors of C stay in registers.
template <int R>
void register_tile(const float* a, const float* b, float* c, const BlockShape& s) {
  Float8 sum[R][2];
  for (int r = 0; r < R; ++r) {
    sum[r][0] = s.accumulate ? load8(c + r * s.n) : Float8{};
    sum[r][1] = s.accumulate ? load8(c + r * s.n + 8) : Float8{};
  }
  for (int k = 0; k < s.k; ++k) {
    const Float8 low = load8(b + k * s.n);
    const Float8 high = load8(b + k * s.n + 8);
    for (int r = 0; r < R; ++r) {
      const float x = a[r * s.k + k];
      sum[r][0] += x * low;
      sum[r][1] += x * high;
    }
  }
  for (int r = 0; r < R; ++r) {
    std::memcpy(c + r * s.n, &sum[r][0], sizeof(Float8));
    std::memcpy(c + r * s.n + 8, &sum[r][1], sizeof(Float8));
  }
}

class PlainProduct final : public BlockProduct {
 public:
  explicit PlainProduct(const BlockShape& shape) : shape_(shape) {}

  void run(const void* a, const void* b, float* c, void* /*scratch*/) const override {
    const auto* rows = static_cast<const float*>(a);
    const auto* columns = static_cast<const float*>(b);
    for (int n = 0; n < shape_.n; n += 16) {
      for (int m = 0; m < shape_.m; m += 4) {
        register_tile<4>(rows + m * shape_.k, columns + n, c + m * shape_.n + n, shape_);
      }
    }
  }

 private:
  BlockShape shape_;
};

}  // namespace

const BlockProduct& BlockProduct::get(const BlockShape& shape) {
  LLMTRAIN_CHECK(
      shape.m > 0 && shape.m % 16 == 0 && shape.n > 0 && shape.n % 16 == 0 && shape.k > 0 && shape.k % 2 == 0,
      "block products need multiples of 16");
  static std::mutex mutex;
  static std::map<std::pair<bool, BlockShape>, std::unique_ptr<BlockProduct>> made;
  const bool plain = !product_kernels(DType::f32, shape.m).micro;
  const std::lock_guard lock(mutex);
  std::unique_ptr<BlockProduct>& product = made[{plain, shape}];
  if (product) return *product;
  if (!plain || shape.dtype == DType::bf16) {
    const auto& [dtype, m, n, k, accumulate] = shape;
    if (auto kernel = make_micro_kernel({m, n, k, k, n, n, dtype, accumulate})) {
      product = std::make_unique<MicroProduct>(std::move(kernel));
      return *product;
    }
  }
  LLMTRAIN_CHECK(shape.dtype == DType::f32, "no product of bf16 blocks on this processor");
  product = std::make_unique<PlainProduct>(shape);
  return *product;
}

}  // namespace llmtrain::host
