#include <cublasLt.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "core/profile.hpp"
#include "kernels/cuda/column_sum.cuh"
#include "kernels/cuda/dequantize.cuh"
#include "kernels/cuda/int8_product.cuh"
#include "kernels/matmul_checks.hpp"

// cuBLASLt is column-major: a row-major matrix [R, C] is its C x R matrix with leading dimension C. The library's first
// choice for a shape is kept, so that a shape has one order of summation. A batch-invariant product uses the choice for
// a fixed number of rows; where the library refuses it for fewer rows, more rows are computed.

namespace llmtrain {

namespace {

using namespace cuda;

constexpr size_t workspace_bytes = size_t{64} << 20;
/// cuBLASLt 12.8 to 13.2 split an inner dimension and leave out its tail if it is not a multiple of a kernel's block,
/// of which 128 is the largest: such dimensions are not split.
constexpr int64_t split_granule = 128;

void check(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Error(std::string(call) + " failed: " + cublasLtGetStatusString(status) + device_fault());
}

/// D (m x n) = op(A) op(B) + beta D, column-major; fp32 accumulation. Signed bytes (u8) have sums of int32.
struct Product {
  int64_t m, n, k;
  bool a_transposed = false, b_transposed = false;
  DType input = DType::f32, output = DType::f32;
  bool accumulate = false, bias = false, tf32 = false;
  int64_t b_stride = 0, d_stride = 0;  ///< leading dimensions; 0: dense columns
  int alignment = 16;                  ///< alignment of A, B and D, in bytes: an input of the library's choice
  int64_t chosen_for = 0;              ///< columns of B and D for which the algorithm is chosen, at least n; 0: n
  auto operator<=>(const Product&) const = default;
};

/// The largest power of 2, at most 16, that divides all of them.
int alignment_of(std::initializer_list<uintptr_t> offsets) {
  uintptr_t bits = 16;
  for (const uintptr_t offset : offsets) bits |= offset;
  return static_cast<int>(bits & (~bits + 1));  // lowest set bit
}
int alignment_of(std::initializer_list<const void*> pointers) {
  uintptr_t bits = 16;
  for (const void* p : pointers) bits |= reinterpret_cast<uintptr_t>(p);
  return alignment_of({bits});
}

cudaDataType_t type_of(DType dtype) {
  if (dtype == DType::u8) return CUDA_R_8I;
  if (dtype == DType::i32) return CUDA_R_32I;
  if (dtype == DType::f16) return CUDA_R_16F;
  return dtype == DType::f32 ? CUDA_R_32F : CUDA_R_16BF;
}

/// Descriptors and algorithm of a product, created once. The library's choice depends on the alignment of the bias,
/// which it is told in advance: each must be aligned to 16 bytes.
class Plan {
 public:
  Plan(cublasLtHandle_t handle, const Product& p, const void* bias) : integers_(p.output == DType::i32) {
    const cublasComputeType_t floats = p.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    check(cublasLtMatmulDescCreate(&operation_, integers_ ? CUBLAS_COMPUTE_32I : floats,
                                   integers_ ? CUDA_R_32I : CUDA_R_32F),
          "cublasLtMatmulDescCreate");
    set(CUBLASLT_MATMUL_DESC_TRANSA, p.a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, p.b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (p.bias) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    }
    layout(a_, type_of(p.input), p.a_transposed ? p.k : p.m, p.a_transposed ? p.m : p.k);
    if (p.chosen_for > p.n) {
      lay_out_columns(p, p.chosen_for);
      choose(handle, p);
      drop_columns();
    }
    columns_ = p.n;
    lay_out_columns(p, columns_);
    if (p.chosen_for <= p.n) choose(handle, p);
    while (columns_ < p.chosen_for && !suits(handle)) {
      drop_columns();
      columns_ = std::min(p.chosen_for, static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(columns_ + 1))));
      lay_out_columns(p, columns_);
    }
  }
  ~Plan() {
    cublasLtMatrixLayoutDestroy(a_);
    drop_columns();
    cublasLtMatmulDescDestroy(operation_);
  }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  int64_t columns() const { return columns_; }  ///< of B and D, at least those of the product
  void run(cublasLtHandle_t handle, const void* a, const void* b, void* d, const void* bias, bool accumulate,
           void* workspace, Stream& stream) {
    if (bias != nullptr) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    const float floats[] = {1, accumulate ? 1.0f : 0.0f};
    const int32_t integers[] = {1, accumulate ? 1 : 0};
    const void* alpha = integers_ ? static_cast<const void*>(integers) : floats;
    const void* beta = integers_ ? static_cast<const void*>(integers + 1) : floats + 1;
    check(cublasLtMatmul(handle, operation_, alpha, a, a_, b, b_, beta, d, d_, d, d_, &algorithm_, workspace,
                         workspace_bytes, static_cast<cudaStream_t>(stream.native())),
          "cublasLtMatmul");
  }

 private:
  void lay_out_columns(const Product& p, int64_t n) {
    layout(b_, type_of(p.input), p.b_transposed ? n : p.k, p.b_transposed ? p.k : n, p.b_stride);
    layout(d_, type_of(p.output), p.m, n, p.d_stride);
  }
  void drop_columns() {
    for (cublasLtMatrixLayout_t l : {b_, d_}) cublasLtMatrixLayoutDestroy(l);
  }
  void choose(cublasLtHandle_t handle, const Product& p) {
    cublasLtMatmulPreference_t preference = nullptr;
    check(cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate");
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
      check(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value),
            "cublasLtMatmulPreferenceSetAttribute");
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_bytes);
    // A split inner dimension is summed in fp32, in order: not in the result's type, not by atomics.
    const bool splits = p.k % split_granule == 0;
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
           splits ? uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE} : uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE});
    for (const auto attribute :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
      prefer(attribute, static_cast<uint32_t>(p.alignment));
    }
    cublasLtMatmulHeuristicResult_t found{};
    int count = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(handle, operation_, a_, b_, d_, d_, preference, 1, &found, &count);
    cublasLtMatmulPreferenceDestroy(preference);
    check(status, "cublasLtMatmulAlgoGetHeuristic");
    LLMTRAIN_CHECK(count == 1, "cuBLASLt has no algorithm for a product");
    algorithm_ = found.algo;
  }
  /// True if the library supports the algorithm for the current layouts.
  bool suits(cublasLtHandle_t handle) {
    cublasLtMatmulHeuristicResult_t found{};
    return cublasLtMatmulAlgoCheck(handle, operation_, a_, b_, d_, d_, &algorithm_, &found) == CUBLAS_STATUS_SUCCESS &&
           found.workspaceSize <= workspace_bytes;
  }
  template <class T>
  void set(cublasLtMatmulDescAttributes_t attribute, T value) {
    check(cublasLtMatmulDescSetAttribute(operation_, attribute, &value, sizeof value),
          "cublasLtMatmulDescSetAttribute");
  }
  static void layout(cublasLtMatrixLayout_t& result, cudaDataType_t type, int64_t rows, int64_t columns,
                     int64_t stride = 0) {
    check(cublasLtMatrixLayoutCreate(&result, type, static_cast<uint64_t>(rows), static_cast<uint64_t>(columns),
                                     stride > 0 ? stride : rows),
          "cublasLtMatrixLayoutCreate");
  }

  cublasLtMatmulDesc_t operation_ = nullptr;
  cublasLtMatrixLayout_t a_ = nullptr, b_ = nullptr, d_ = nullptr;
  cublasLtMatmulAlgo_t algorithm_{};
  int64_t columns_ = 0;
  bool integers_;
};

class Library {
 public:
  Library() : workspace_(static_cast<int64_t>(workspace_bytes)) { check(cublasLtCreate(&handle_), "cublasLtCreate"); }

  void run(const Product& p, const void* a, const void* b, void* d, const void* bias, Stream& stream) {
    std::unique_ptr<Plan>& plan = plans_[p];
    if (!plan) plan = std::make_unique<Plan>(handle_, p, bias);
    if (plan->columns() > p.n) return run_padded(*plan, p, a, b, d, bias, stream);
    plan->run(handle_, a, b, d, bias, p.accumulate, workspace_.data(), stream);
  }

 private:
  /// Buffers are never freed: graphs keep using those they were recorded with.
  static void* at_least(std::vector<DeviceBuffer>& buffers, int64_t bytes) {
    if (buffers.empty() || buffers.back().bytes() < bytes) buffers.emplace_back(bytes);
    return buffers.back().data();
  }
  /// Computes more columns than the product has, whose values do not matter.
  void run_padded(Plan& plan, const Product& p, const void* a, const void* b, void* d, const void* bias,
                  Stream& stream) {
    const int64_t b_column = std::max(p.b_stride, p.k) * static_cast<int64_t>(size_of(p.input)),
                  d_column = std::max(p.d_stride, p.m) * static_cast<int64_t>(size_of(p.output));
    void* const padded_b = at_least(padded_b_, plan.columns() * b_column);
    void* const padded_d = at_least(padded_d_, plan.columns() * d_column);
    copy_on_device(padded_b, b, p.n * b_column, stream);
    if (p.accumulate || p.d_stride > p.m) copy_on_device(padded_d, d, p.n * d_column, stream);
    plan.run(handle_, a, padded_b, padded_d, bias, p.accumulate, workspace_.data(), stream);
    copy_on_device(d, padded_d, p.n * d_column, stream);
  }

  cublasLtHandle_t handle_ = nullptr;
  DeviceBuffer workspace_;
  std::vector<DeviceBuffer> padded_b_, padded_d_;
  std::map<Product, std::unique_ptr<Plan>> plans_;
};

Library& library() {
  static auto* one = new Library();  // never destroyed: at exit the driver may be unloaded first
  return *one;
}

std::atomic<bool> tf32_wanted{false};

void multiply(Product p, const void* a, const void* b, void* d, Stream& stream, const void* bias = nullptr) {
  p.bias = bias != nullptr;
  p.tf32 = tf32_wanted && p.input == DType::f32;
  p.alignment = std::min(p.alignment, alignment_of({a, b, d}));
  library().run(p, a, b, d, bias, stream);
}

/// Rows per call of a batch-invariant product; the algorithm is chosen for this number.
int64_t rows_at_a_time(ProductRole role, int64_t rows) {
  switch (role) {
    case ProductRole::training:
      return rows;
    case ProductRole::prefill:
      return 1024;
    case ProductRole::decoding:
      return 64;
  }
  return rows;
}

template <class Y, class B>
struct AddBias {
  Y* y;
  const B* bias;
  int64_t columns;
  __device__ void operator()(int64_t i) const { store(y + i, load(y + i) + load(bias + i % columns)); }
};

template <class T>
struct AddElement {
  const T* in;
  int64_t columns;
  __device__ void operator()(int64_t row, int64_t column, float* sums) const {
    sums[0] += load(in + row * columns + column);
  }
};

}  // namespace

/// Products of bytes need dimensions of whole words; more terms could leave the range of int32.
bool cuda::multiply_codes(const Tensor& sums, const int8_t* inputs, const int8_t* weights, int64_t columns,
                          Stream& stream) {
  constexpr int64_t most_terms = INT32_MAX / (127 * 128);
  const int64_t rows = sums.dim(0), outputs = sums.dim(1);
  const int alignment = alignment_of({static_cast<const void*>(inputs), weights});
  if (columns % 4 != 0 || outputs % 4 != 0 || alignment < 4 || columns > most_terms) return false;
  multiply({.m = outputs, .n = rows, .k = columns, .a_transposed = true, .input = DType::u8, .output = DType::i32},
           weights, inputs, sums.data, stream);
  return true;
}

bool use_tf32(bool wanted) {
  tf32_wanted = wanted;
  return true;
}

bool bf16_products_are_fast() { return device_fast_bf16(); }

std::string slow_products_note() { return {}; }

std::string product_library() {
  const size_t version = cublasLtGetVersion();
  return "cuBLASLt " + std::to_string(version / 10000) + '.' + std::to_string(version / 100 % 100) + '.' +
         std::to_string(version % 100);
}

int64_t matmul_workspace_bytes() { return static_cast<int64_t>(workspace_bytes); }

void linear_forward(const Tensor& y, const Tensor& x, const WeightMatrix& weight, const Tensor& bias, Stream& stream,
                    ProductRole role, const LowRank& added) {
  const ProductShape product = check_linear_forward(y, x, weight, bias, bias.empty());
  check_added(added, x, {product.n, product.m}, true);
  const int64_t n = product.n, m = product.m, k = product.k;
  if (n == 0 || m == 0) return;
  const ProfileSpan span("linear_forward", [&] {
    return traffic({&y, &x}, weight, product.flops() + flops(added, m));
  });
  if (weight.is_quantized() && weight.quantized().format.type == QuantizedType::int8) {
    return int8_forward(y, x, weight, bias, stream, role, added);
  }
  if (weight.is_quantized() && role == ProductRole::decoding) {
    return decode_from_codes(y, x, weight, bias, stream, added);
  }
  const Tensor w = dense_of(weight, stream);
  const bool fused = !bias.empty() && bias.dtype == y.dtype && alignment_of({bias.data}) == 16;
  const int64_t at_a_time = rows_at_a_time(role, n);
  for (int64_t first = 0; first < n; first += at_a_time) {
    const int64_t rows = std::min(at_a_time, n - first);
    const Tensor from = x.rows(first, rows), to = y.rows(first, rows);
    Product p{.m = m, .n = rows, .k = k, .a_transposed = true, .input = x.dtype, .output = y.dtype};
    p.d_stride = y.dim(1);
    if (role != ProductRole::training) {  // rows may have any alignment
      p.chosen_for = at_a_time;
      p.alignment =
          alignment_of({static_cast<uintptr_t>(x.rows(0, 1).bytes()), static_cast<uintptr_t>(y.rows(0, 1).bytes())});
    }
    multiply(p, w.data, from.data, to.data, stream, fused ? bias.data : nullptr);
    if (added.empty()) continue;
    p.k = added.rank();
    p.accumulate = true;
    multiply(p, added.right.data, added.left.rows(first, rows).data, to.data, stream);
  }
  if (bias.empty() || fused) return;
  dispatch(y, bias, [&]<class Y, class B>(Y* to, B* from) { for_each(n * m, stream, AddBias<Y, B>{to, from, m}); });
}

void linear_backward_input(const Tensor& dx, const Tensor& dy, const WeightMatrix& weight, bool accumulate,
                           Stream& stream, const LowRank& added) {
  const ProductShape product = check_linear_backward_input(dx, dy, weight, accumulate, true);
  check_added(added, dy, {product.n, product.k}, false);
  const int64_t n = product.n, m = product.m, k = product.k;
  if (n == 0) return;
  const ProfileSpan span("linear_backward_input", [&] {
    return traffic({&dx, &dy}, weight, product.flops() + flops(added, k));
  });
  const Tensor w = dense_of(weight, stream);
  Product p{.m = k, .n = n, .k = m, .input = dy.dtype, .output = dx.dtype, .accumulate = accumulate};
  p.b_stride = dy.dim(1);
  multiply(p, w.data, dy.data, dx.data, stream);
  if (added.empty()) return;
  multiply({.m = k, .n = n, .k = added.rank(), .input = dy.dtype, .output = dx.dtype, .accumulate = true},
           added.right.data, added.left.data, dx.data, stream);
}

void linear_backward_weight(const Tensor& dw, const Tensor& dy, const Tensor& x, bool accumulate, Stream& stream) {
  check_linear_backward_weight(dw, dy, x, true);
  linear_backward_weight_rows(dw, 0, dy, x, accumulate, stream);
}

void linear_backward_weight_rows(const Tensor& dw, int64_t first, const Tensor& dy, const Tensor& x, bool accumulate,
                                 Stream& stream) {
  const ProductShape product = check_linear_backward_weight_rows(dw, first, dy, x);
  const int64_t n = product.n, m = product.m, k = product.k;
  const ProfileSpan span("linear_backward_weight", [&] { return traffic({&dw, &x}, product.flops()); });
  if (n == 0) {
    if (!accumulate) fill_zero(dw.data, dw.bytes(), stream);
    return;
  }
  multiply({.m = k,
            .n = m,
            .k = n,
            .b_transposed = true,
            .input = dy.dtype,
            .output = DType::f32,
            .accumulate = accumulate,
            .b_stride = dy.dim(1)},
           x.data, static_cast<const char*>(dy.data) + first * static_cast<int64_t>(size_of(dy.dtype)), dw.data,
           stream);
}

void linear_backward_bias(const Tensor& db, const Tensor& dy, bool accumulate, Stream& stream) {
  check_linear_backward_bias(db, dy);
  const ProfileSpan span("linear_backward_bias", [&] { return traffic({&dy}); });
  const int64_t columns = dy.dim(1);
  dispatch(dy, [&]<class T>(T* in) {
    column_sums(dy.dim(0), columns, {db.as<float>()}, accumulate, stream, AddElement<T>{in, columns});
  });
}

}  // namespace llmtrain
