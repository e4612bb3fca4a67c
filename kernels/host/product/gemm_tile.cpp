#include "kernels/host/product/gemm_tile.hpp"

#include <oneapi/dnnl/dnnl_ukernel.h>

#include <array>
#include <type_traits>
#include <utility>

#include "core/error.hpp"
#include "device/processor.hpp"
#include "kernels/host/fast_math.hpp"
#include "kernels/host/lanes.hpp"
#include "kernels/host/special_functions.hpp"

namespace llmtrain::host {

namespace {

/// The product in vectors of 8 columns.
class PlainKernel : public TileKernel {
 public:
  explicit PlainKernel(const TileShape& shape) : shape_(shape) {}

  bool run(const void* a, const void* b, void* c, void* /*scratch*/) const override {
    const auto* left = static_cast<const float*>(a);
    for (int64_t j = 0; j < shape_.n;) {
      const int64_t columns = shape_.n - j;
      const float* right = static_cast<const float*>(b) + j;
      float* to = static_cast<float*>(c) + j;
      columns > 8 ? rows<6, 2>(left, right, to, shape_.m, columns) : rows<12, 1>(left, right, to, shape_.m, columns);
      j += columns > 8 ? 16 : 8;
    }
    return true;
  }

 private:
  /// R rows at a time, as many as registers hold sums of, then fewer.
  template <int R, int C>
  void rows(const float* a, const float* b, float* c, int64_t count, int64_t columns) const {
    int64_t i = 0;
    for (; i + R <= count; i += R) register_tile<R, C>(a + i * shape_.lda, b, c + i * shape_.ldc, columns);
    if constexpr (R > 1) rows<R / 2, C>(a + i * shape_.lda, b, c + i * shape_.ldc, count - i, columns);
  }

  template <int R, int C>
  void register_tile(const float* a, const float* b, float* c, int64_t columns) const {
    Float8 sums[R][C] = {};
    for (int64_t k = 0; k < shape_.k; ++k, b += shape_.ldb) {
      Float8 right[C];
      for (int j = 0; j < C; ++j) right[j] = load8(b + 8 * j);
      for (int r = 0; r < R; ++r) {
        const Float8 left = Float8{} + a[r * shape_.lda + k];
        for (int j = 0; j < C; ++j) sums[r][j] = fused(left, right[j], sums[r][j]);
      }
    }
    for (int r = 0; r < R; ++r) {
      for (int j = 0; j < C; ++j) {
        float* to = c + r * shape_.ldc + 8 * j;
        const int64_t left = columns - 8 * j;
        store_up_to(to, shape_.accumulate ? load_up_to(to, left) + sums[r][j] : sums[r][j], left);
      }
    }
  }

  TileShape shape_;
};

#if defined(LLMTRAIN_ONEDNN_UKERNELS)  // cmake/Dependencies.cmake

struct DestroyBrgemm {
  void operator()(dnnl_brgemm_t kernel) const { dnnl_brgemm_destroy(kernel); }
};
using Brgemm = std::unique_ptr<std::remove_pointer_t<dnnl_brgemm_t>, DestroyBrgemm>;

/// Types of A, B and C.
struct TileTypes {
  dnnl_data_type_t a, b, c;
};
TileTypes onednn_types(DType input) {
  if (input == DType::u8) return {dnnl_u8, dnnl_s8, dnnl_s32};
  if (input == DType::bf16) return {dnnl_bf16, dnnl_bf16, dnnl_f32};
  return {dnnl_f32, dnnl_f32, dnnl_f32};
}

/// A kernel descriptor ready for generation, or null if the library has no kernel for the shape here.
Brgemm make_brgemm(const TileShape& s) {
  const auto [a, b, c] = onednn_types(s.input);
  dnnl_brgemm_t made = nullptr;
  if (dnnl_brgemm_create(&made, s.m, s.n, s.k, 1, s.lda, s.ldb, s.ldc, a, b, c) != dnnl_success) return {};
  Brgemm kernel(made);
  if (dnnl_brgemm_set_add_C(made, s.accumulate ? 1 : 0) != dnnl_success) return {};
  if (dnnl_brgemm_finalize(made) != dnnl_success) return {};
  return kernel;
}

/// Layout of B for kernels of the dtype. Releases before 3.8 query a kernel, later ones the library, by a function of
/// the same name: a program compiled for one and loaded with the other must not call it.
dnnl_pack_type_t panel_layout(DType input) {
  const bool asks_a_kernel = dnnl_version()->major == 3 && dnnl_version()->minor < 8;
  dnnl_pack_type_t layout = dnnl_pack_type_undef;
#if DNNL_VERSION_MAJOR == 3 && DNNL_VERSION_MINOR < 8
  const Brgemm kernel = make_brgemm({64, 64, 64, 64, 64, 64, input, false});
  const bool known = asks_a_kernel && kernel && dnnl_brgemm_get_B_pack_type(kernel.get(), &layout) == dnnl_success;
#else
  const TileTypes types = onednn_types(input);
  const bool known = !asks_a_kernel && dnnl_brgemm_get_B_pack_type(&layout, types.a, types.b) == dnnl_success;
#endif
  return known ? layout : dnnl_pack_type_undef;
}

class MicroKernel : public TileKernel {
 public:
  explicit MicroKernel(Brgemm kernel) : kernel_(std::move(kernel)) {
    size_t bytes = 0;
    LLMTRAIN_CHECK(dnnl_brgemm_get_scratchpad_size(kernel_.get(), &bytes) == dnnl_success,
                   "a oneDNN micro-kernel does not tell its scratch memory");
    scratch_bytes_ = static_cast<int64_t>(bytes);
  }
  int64_t scratch_bytes() const override { return scratch_bytes_; }
  void configure_thread() const override { dnnl_brgemm_set_hw_context(kernel_.get()); }
  bool run(const void* a, const void* b, void* c, void* scratch) const override {
    static constexpr std::array<dnnl_dim_t, 2> no_offsets{};  // a batch of one
    return dnnl_brgemm_execute(kernel_.get(), a, b, no_offsets.data(), c, scratch) == dnnl_success;
  }

 private:
  Brgemm kernel_;
  int64_t scratch_bytes_ = 0;
};

#endif

}  // namespace

std::unique_ptr<TileKernel> make_plain_kernel(const TileShape& shape) {
  LLMTRAIN_CHECK(shape.input == DType::f32, "plain tiles take fp32 panels");
  return std::make_unique<PlainKernel>(shape);
}

bool long_rows_are_slow() { return processor_has(Instructions::amx); }

#if defined(LLMTRAIN_ONEDNN_UKERNELS)

bool onednn_has_micro_kernels() { return true; }

std::unique_ptr<TileKernel> make_micro_kernel(const TileShape& s) {
  Brgemm kernel = make_brgemm(s);
  if (!kernel || dnnl_brgemm_generate(kernel.get()) != dnnl_success) return nullptr;
  return std::make_unique<MicroKernel>(std::move(kernel));
}

void leave_micro_kernels() { dnnl_brgemm_release_hw_context(); }

bool have_micro_kernels(DType input) {
  // oneDNN emulates bf16 with AVX-512 alone, which is slower than fp32, and sums of bytes, which saturate then.
  if (input != DType::f32 && !processor_has(Instructions::avx512_bf16)) return false;
  if (panel_layout(input) != (input == DType::f32 ? dnnl_pack_type_no_trans : dnnl_pack_type_pack32)) return false;
  return make_micro_kernel({64, 64, 64, 64, 64, 64, input, false}) != nullptr;
}

#else

bool onednn_has_micro_kernels() { return false; }
std::unique_ptr<TileKernel> make_micro_kernel(const TileShape&) { return nullptr; }
void leave_micro_kernels() {}
bool have_micro_kernels(DType) { return false; }

#endif

}  // namespace llmtrain::host
