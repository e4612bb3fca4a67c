#include "kernels/host/product/gemm_tile.hpp"

#include <omp.h>
#include <oneapi/dnnl/dnnl_ukernel.h>

#include <array>
#include <oneapi/dnnl/dnnl.hpp>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "device/processor.hpp"

namespace llmtrain::host {

namespace {

using dnnl::memory;

/// A primitive is created for a fixed number of threads; one thread never divides k.
class OneThread {
 public:
  OneThread() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~OneThread() { omp_set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

class PrimitiveKernel : public TileKernel {
 public:
  explicit PrimitiveKernel(const TileShape& s)
      : engine_(dnnl::engine::kind::cpu, 0),
        a_({s.m, s.k}, memory::data_type::f32, {s.lda, 1}),
        b_({s.k, s.n}, memory::data_type::f32, {s.ldb, 1}),
        c_({s.m, s.n}, memory::data_type::f32, {s.ldc, 1}) {
    const OneThread one_thread;
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    if (s.accumulate) {
      dnnl::post_ops sum;
      sum.append_sum(1.0f);
      attributes.set_post_ops(sum);
    }
    const dnnl::matmul::primitive_desc description(engine_, a_, b_, c_, attributes);
    scratchpad_ = description.scratchpad_desc();
    primitive_ = dnnl::matmul(description);
  }

  void prepare(int threads) override {
    for (int t = static_cast<int>(slots_.size()); t < threads; ++t) slots_.push_back(std::make_unique<Slot>(*this));
  }
  int64_t scratch_bytes() const override { return static_cast<int64_t>(scratchpad_.get_size()); }

  bool run(const void* a, const void* b, void* c, void* scratch, int thread) const override {
    const Slot& slot = *slots_[static_cast<size_t>(thread)];
    const std::array<void*, 4> data{const_cast<void*>(a), const_cast<void*>(b), c, scratch};
    const std::array<int, 4> names{DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_SCRATCHPAD};
    std::array<dnnl_exec_arg_t, 4> arguments{};
    for (size_t i = 0; i < 4; ++i) {
      if (dnnl_memory_set_data_handle(slot.memories[i].get(), data[i]) != dnnl_success) return false;
      arguments[i] = {names[i], slot.memories[i].get()};
    }
    return dnnl_primitive_execute(primitive_.get(), slot.stream.get(), 4, arguments.data()) == dnnl_success;
  }

 private:
  /// Execution context of one thread.
  struct Slot {
    explicit Slot(const PrimitiveKernel& kernel)
        : stream(kernel.engine_),
          memories{memory(kernel.a_, kernel.engine_, nullptr), memory(kernel.b_, kernel.engine_, nullptr),
                   memory(kernel.c_, kernel.engine_, nullptr), memory(kernel.scratchpad_, kernel.engine_, nullptr)} {}
    dnnl::stream stream;
    std::array<memory, 4> memories;
  };

  dnnl::engine engine_;
  memory::desc a_;
  memory::desc b_;
  memory::desc c_;
  memory::desc scratchpad_;
  dnnl::primitive primitive_;
  std::vector<std::unique_ptr<Slot>> slots_;
};

/// C[m, 1] with any stride, by loops.
class ColumnKernel : public TileKernel {
 public:
  explicit ColumnKernel(const TileShape& shape) : shape_(shape) {}
  int64_t scratch_bytes() const override { return 0; }
  bool run(const void* a, const void* b, void* c, void* /*scratch*/, int /*thread*/) const override {
    auto* to = static_cast<float*>(c);
    for (int64_t i = 0; i < shape_.m; ++i) {
      float sum = shape_.accumulate ? to[i * shape_.ldc] : 0.0f;
      for (int64_t k = 0; k < shape_.k; ++k) {
        sum += static_cast<const float*>(a)[i * shape_.lda + k] * static_cast<const float*>(b)[k * shape_.ldb];
      }
      to[i * shape_.ldc] = sum;
    }
    return true;
  }

 private:
  TileShape shape_;
};

/// oneDNN 3.7 takes the rows of a C with one column to be neighbours, on processors with AVX-512.
bool columns_have_strides() {
  PrimitiveKernel kernel(
      {.m = 2, .n = 1, .k = 1, .lda = 1, .ldb = 1, .ldc = 2, .input = DType::f32, .accumulate = false});
  kernel.prepare(1);
  std::vector<char> scratch(static_cast<size_t>(kernel.scratch_bytes()) + 1);
  const std::array<float, 2> a{1, 2};
  const float b = 3;
  std::array<float, 3> c{};
  return kernel.run(a.data(), &b, c.data(), scratch.data(), 0) && c[0] == 3 && c[2] == 6;
}

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
  bool run(const void* a, const void* b, void* c, void* scratch, int /*thread*/) const override {
    static constexpr std::array<dnnl_dim_t, 2> no_offsets{};  // a batch of one
    return dnnl_brgemm_execute(kernel_.get(), a, b, no_offsets.data(), c, scratch) == dnnl_success;
  }

 private:
  Brgemm kernel_;
  int64_t scratch_bytes_ = 0;
};

#endif

}  // namespace

std::unique_ptr<TileKernel> make_primitive_kernel(const TileShape& shape) {
  LLMTRAIN_CHECK(shape.input == DType::f32, "tile primitives take fp32 panels");
  static const bool strides = columns_have_strides();
  if (shape.n == 1 && !strides) return std::make_unique<ColumnKernel>(shape);
  return std::make_unique<PrimitiveKernel>(shape);
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
