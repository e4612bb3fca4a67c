#include <algorithm>

#include "core/profile.hpp"
#include "device/processor.hpp"
#include "kernels/host/column_sum.hpp"
#include "kernels/host/parallel.hpp"
#include "kernels/host/product/gemm.hpp"
#include "kernels/host/product/gemm_tile.hpp"
#include "kernels/host/product/int8_product.hpp"
#include "kernels/host/product/product_shapes.hpp"
#include "kernels/host/product/row_dots.hpp"
#include "kernels/matmul_checks.hpp"

namespace llmtrain {

namespace {

using host::few_rows;

bool has_avx512() {
  static const bool has = processor_has(Instructions::avx512);
  return has;
}

/// Weights of type T, which are read once and in place.
template <class T>
struct DenseRows {
  const T* data;
  int64_t columns;

  /// sums[j, i] = row i of x . row first + j, for `count` rows of weights and n of x, n <= few_rows.
  void dots(double* sums, const float* x, int64_t n, int64_t first, int64_t count) const {
    const host::DenseDots<T> d{data + first * columns, columns, count, x, sums};
#if defined(__x86_64__)
    if (has_avx512()) return host::dense_dots_avx512(d, n);
#endif
    host::DenseDotsOf<host::Float8>::run(d, n);
  }
};

/// 4-bit weights, which are dequantised in registers.
struct QuantizedRowDots {
  const QuantizedMatrix& matrix;
  DType dtype;

  void dots(double* sums, const float* x, int64_t n, int64_t first, int64_t count) const {
    while (count > 0) {
      const QuantizedRows& slice = matrix.slice_of(first);
      const int64_t rows = std::min(count, slice.first_row + slice.rows - first);
      multiply({host::dequantized_run(matrix, first, 0, matrix.columns, dtype, nullptr, true), rows, x, sums}, n);
      sums += rows * few_rows;
      first += rows;
      count -= rows;
    }
  }

 private:
  static void multiply(const host::QuantizedDots& d, int64_t n) {
#if defined(__x86_64__)
    if (has_avx512()) return host::quantized_dots_avx512(d, n);
#endif
    host::QuantizedDotsOf<host::Float8>::run(d, n);
  }
};

/// Left operands of a product and of the one added to it, in fp32.
struct FloatRows {
  const float* x;
  int64_t k;
  const float* left;
  int64_t rank;  ///< 0: nothing is added
};

/// Every element is a sum in the order of lane_sum, whatever n. T is the type of x.
template <class T, class Rows, class Out>
void forward_in_place(Out* y, const FloatRows& from, const Rows& w, const T* right, const Tensor& bias, int64_t n,
                      int64_t m) {
  using Half = std::conditional_t<std::is_same_v<T, float>, bf16, T>;  // for a bias that is not fp32
  constexpr int64_t small = int64_t{1} << 15;  // weights below which other threads are not woken
  constexpr int64_t at_once = 16;              // rows of weights
  const auto shift = [=, &bias](int64_t j) {
    if (bias.empty()) return 0.0;
    return double{bias.dtype == DType::f32 ? bias.as<float>()[j] : host::load(bias.as<Half>() + j)};
  };
  host::parallel_blocks(m, m * from.k <= small ? m : at_once, [=, &w](int64_t begin, int64_t end) {
    const auto& [x, k, left, rank] = from;
    for (int64_t r = 0; r < n; r += few_rows) {  // from the second iteration on the block's weights are in a cache
      const int64_t rows = std::min(few_rows, n - r);
      for (int64_t j = begin; j < end; j += at_once) {
        const int64_t count = std::min(at_once, end - j);
        double sums[at_once * few_rows], added[at_once * few_rows]{};
        w.dots(sums, x + r * k, rows, j, count);
        if (rank > 0) DenseRows<T>{right, rank}.dots(added, left + r * rank, rows, j, count);
        for (int64_t i = 0; i < rows; ++i) {
          for (int64_t c = 0; c < count; ++c) {
            const double sum = sums[c * few_rows + i] + added[c * few_rows + i];
            host::store(y + (r + i) * m + j + c, static_cast<float>(sum + shift(j + c)));
          }
        }
      }
    }
  });
}

void widen(float* out, const Tensor& x) {
  host::dispatch(x.dtype, [&](auto* tag) {
    const auto* from = static_cast<decltype(tag)>(x.data);
    for (int64_t i = 0; i < x.numel(); ++i) out[i] = host::load(from + i);
  });
}

FloatRows float_rows(const Tensor& x, const Tensor& left) {
  const int64_t rank = left.empty() ? 0 : left.dim(1);
  if (x.dtype == DType::f32) return {x.as<float>(), x.dim(1), rank == 0 ? nullptr : left.as<float>(), rank};
  float* wide = host::scratch(x.numel() + x.dim(0) * rank);
  widen(wide, x);
  if (rank > 0) widen(wide + x.numel(), left);
  return {wide, x.dim(1), wide + x.numel(), rank};
}

const void* dense_data(const WeightMatrix& w) { return w.is_quantized() ? nullptr : w.dense().data; }

}  // namespace

bool use_tf32(bool /*wanted*/) { return false; }

bool bf16_products_are_fast() {
  static const bool fast = device_fast_bf16() && host::have_micro_kernels(DType::bf16);
  return fast;
}

std::string slow_products_note() {
  if (!processor_has(Instructions::avx2) || host::have_micro_kernels(DType::f32)) return {};
  const char* why = host::onednn_has_micro_kernels()
                        ? "the loaded oneDNN has a different micro-kernel interface than the one that llmtrain was "
                          "compiled with: compile llmtrain again"
                        : "the oneDNN of this build has no micro-kernels: build it with "
                          "-DDNNL_EXPERIMENTAL_UKERNEL=ON, as Debian does, then rebuild llmtrain";
  return std::string("matrix products and attention use their slowest path: ") + why;
}

void linear_forward(const Tensor& y, const Tensor& x, const WeightMatrix& w, const Tensor& bias, Stream&,
                    ProductRole role, const LowRank& added) {
  const ProductShape product = check_linear_forward(y, x, w, bias);
  check_added(added, x, {product.n, product.m}, true);
  const int64_t n = product.n, m = product.m;
  if (n == 0 || m == 0) return;
  const ProfileSpan span("linear_forward", [&] { return traffic({&y, &x}, w, product.flops() + flops(added, m)); });
  if (w.is_quantized() && w.quantized().format.type == QuantizedType::int8) {
    return host::int8_forward(y, x, w, bias, role, added);
  }
  if (role == ProductRole::decoding || (role == ProductRole::training && n <= few_rows)) {
    host::dispatch(y, x, [&]<class Out, class T>(Out* to, const T*) {
      const FloatRows from = float_rows(x, added.left);
      const auto* right = static_cast<const T*>(added.right.data);
      if (w.is_quantized()) {
        forward_in_place(to, from, QuantizedRowDots{w.quantized(), x.dtype}, right, bias, n, m);
      } else {
        forward_in_place(to, from, DenseRows<T>{static_cast<const T*>(w.dense().data), from.k}, right, bias, n, m);
      }
    });
    return;
  }
  host::GemmShape shape = host::forward_shape(product, x.dtype, y.dtype);
  shape.bias = !bias.empty();
  shape.bias_type = bias.dtype;
  shape.any_rows = role == ProductRole::prefill;
  shape.rank = added.rank();
  shape.quantized = w.is_quantized();
  host::gemm(shape, {x.data, dense_data(w), y.data, bias.data, added.left.data, added.right.data, &w.quantized()});
}

void linear_backward_input(const Tensor& dx, const Tensor& dy, const WeightMatrix& w, bool accumulate, Stream&,
                           const LowRank& added) {
  const ProductShape product = check_linear_backward_input(dx, dy, w, accumulate);
  check_added(added, dy, {product.n, product.k}, false);
  if (product.n == 0) return;
  const ProfileSpan span("linear_backward_input", [&] {
    return traffic({&dx, &dy}, w, product.flops() + flops(added, product.k));
  });
  host::GemmShape shape = host::backward_input_shape(product, dy.dtype, dx.dtype, accumulate);
  shape.rank = added.rank();
  shape.quantized = w.is_quantized();
  host::gemm(shape, {.a = dy.data,
                     .b = dense_data(w),
                     .c = dx.data,
                     .p = added.left.data,
                     .q = added.right.data,
                     .quantized = &w.quantized()});
}

void linear_backward_weight(const Tensor& dw, const Tensor& dy, const Tensor& x, bool accumulate, Stream& stream) {
  const ProductShape product = check_linear_backward_weight(dw, dy, x);
  const ProfileSpan span("linear_backward_weight", [&] { return traffic({&dw, &dy, &x}, product.flops()); });
  if (product.n == 0) {
    if (!accumulate) fill_zero(dw.data, dw.bytes(), stream);
    return;
  }
  host::gemm(host::backward_weight_shape(product, dy.dtype, accumulate), {dy.data, x.data, dw.data});
}

void linear_backward_weight_rows(const Tensor& dw, int64_t first, const Tensor& dy, const Tensor& x, bool accumulate,
                                 Stream& stream) {
  const ProductShape product = check_linear_backward_weight_rows(dw, first, dy, x);
  const ProfileSpan span("linear_backward_weight", [&] { return traffic({&dw, &x}, product.flops()); });
  if (product.n == 0) {
    if (!accumulate) fill_zero(dw.data, dw.bytes(), stream);
    return;
  }
  host::GemmShape shape = host::backward_weight_shape(product, dy.dtype, accumulate);
  shape.a_columns = dy.dim(1);
  host::gemm(shape,
             {static_cast<const char*>(dy.data) + first * static_cast<int64_t>(size_of(dy.dtype)), x.data, dw.data});
}

std::string product_library() { return {}; }

int64_t matmul_workspace_bytes() { return 0; }  // packed panels are in the plan: kernels/workspace.hpp

void linear_backward_bias(const Tensor& db, const Tensor& dy, bool accumulate, Stream&) {
  check_linear_backward_bias(db, dy);
  const ProfileSpan span("linear_backward_bias", [&] { return traffic({&dy}); });
  host::dispatch(dy.dtype, [&](auto* tag) {
    const auto* in = static_cast<decltype(tag)>(dy.data);
    const int64_t columns = dy.dim(1);
    const auto add_rows = [=](float* sums, int64_t begin, int64_t end, int64_t first, int64_t last) {
      for (int64_t r = begin; r < end; ++r) {
        const auto* row = in + r * columns;
#pragma omp simd
        for (int64_t c = first; c < last; ++c) sums[c] += host::load(row + c);
      }
    };
    host::column_sums({dy.dim(0), columns, 1, false}, add_rows, {db.as<float>()}, accumulate);
  });
}

}  // namespace llmtrain
