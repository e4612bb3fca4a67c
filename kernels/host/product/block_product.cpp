#include "kernels/host/product/block_product.hpp"

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

/// A kernel of tiles. Products of several shapes alternate: each call configures the tiles of AMX, if there are any.
class TileProduct final : public BlockProduct {
 public:
  explicit TileProduct(std::unique_ptr<TileKernel> kernel)
      : kernel_(std::move(kernel)), has_tiles_(processor_has(Instructions::amx)) {
    LLMTRAIN_CHECK(kernel_->scratch_bytes() <= scratch_bytes,
                   "a micro-kernel needs more scratch memory than is planned");
  }

  void run(const void* a, const void* b, float* c, void* scratch) const override {
    if (has_tiles_) kernel_->configure_thread();
    LLMTRAIN_CHECK(kernel_->run(a, b, c, scratch), "a oneDNN micro-kernel failed");
  }

 private:
  std::unique_ptr<TileKernel> kernel_;
  bool has_tiles_;
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
  const auto& [dtype, m, n, k, accumulate] = shape;
  const TileShape tile{m, n, k, k, n, n, dtype, accumulate};
  std::unique_ptr<TileKernel> kernel;
  if (!plain || dtype == DType::bf16) kernel = make_micro_kernel(tile);
  if (!kernel) kernel = make_plain_kernel(tile);
  product = std::make_unique<TileProduct>(std::move(kernel));
  return *product;
}

}  // namespace llmtrain::host
