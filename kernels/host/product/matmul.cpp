#include <algorithm>

#include "core/profile.hpp"
#include "device/processor.hpp"
#include "kernels/host/column_sum.hpp"
#include "kernels/host/lanes.hpp"
#include "kernels/host/parallel.hpp"
#include "kernels/host/product/dequantize.hpp"
#include "kernels/host/product/gemm.hpp"
#include "kernels/host/product/gemm_tile.hpp"
#include "kernels/host/product/int8_product.hpp"
#include "kernels/host/product/product_shapes.hpp"
#include "kernels/matmul_checks.hpp"

namespace llmtrain {

namespace {

/// Up to this many rows, weights are read once, in place: packing them would cost more than the product.
constexpr int64_t few_rows = 4;

/// Products of R rows of x, `stride` apart, with one of weights; every sum in the order of lane_sum.
template <int R>
class RowDots {
 public:
  /// Adds `count` elements: a multiple of the lanes in all calls but the last one.
  template <class T>
  void add(const float* x, int64_t stride, const T* w, int64_t count) {
    int64_t i = 0;
    for (; i + host::lane_count <= count; i += host::lane_count) {
      const host::Float8 w_low = host::load8(w + i);
      const host::Float8 w_high = host::load8(w + i + 8);
      for (int r = 0; r < R; ++r) {
        low_[r] += host::load8(x + r * stride + i) * w_low;
        high_[r] += host::load8(x + r * stride + i + 8) * w_high;
      }
    }
    if (i == count) return;
    const int64_t rest = count - i;
    const host::Float8 w_low = host::load_up_to(w + i, rest);
    const host::Float8 w_high = rest > 8 ? host::load_up_to(w + i + 8, rest - 8) : host::Float8{};
    for (int r = 0; r < R; ++r) {
      const float* row = x + r * stride + i;
      low_[r] += host::load_up_to(row, rest) * w_low;
      if (rest > 8) high_[r] += host::load_up_to(row + 8, rest - 8) * w_high;
    }
  }
  void fold(double* out) const {
    for (int r = 0; r < R; ++r) out[r] = host::LaneSum(low_[r], high_[r]).fold();
  }

 private:
  host::Float8 low_[R] = {};
  host::Float8 high_[R] = {};
};

/// Weights of type T, which are read once and in place.
template <class T>
struct DenseRows {
  const T* data;
  int64_t columns;
  template <int R>
  void dot(double* out, const float* x, int64_t row) const {
    RowDots<R> dots;
    dots.add(x, columns, data + row * columns, columns);
    dots.fold(out);
  }
};

/// Quantised weights, dequantised a few at a time.
struct DequantizedRows {
  const QuantizedMatrix& matrix;
  DType dtype;
  template <int R>
  void dot(double* out, const float* x, int64_t row) const {
    constexpr int64_t at_once = 1024;
    alignas(64) float values[at_once];
    RowDots<R> dots;
    for (int64_t i = 0; i < matrix.columns; i += at_once) {
      const int64_t count = std::min(at_once, matrix.columns - i);
      host::dequantize_row(matrix, row, i, count, dtype, values, true);
      dots.add(x + i, matrix.columns, values, count);
    }
    dots.fold(out);
  }
};

/// Left operands of a product and of the one added to it, in fp32.
struct FloatRows {
  const float* x;
  int64_t k;
  const float* left;
  int64_t rank;  ///< 0: nothing is added
};

/// sums[i] += row i of x . row `row` of w for n rows of k elements, n <= few_rows.
template <class Rows>
void add_dots(double* sums, const float* x, const Rows& w, int64_t row, int64_t n, int64_t k) {
  double dots[few_rows];
  if (n == few_rows) {
    w.template dot<few_rows>(dots, x, row);
  } else {
    for (int64_t i = 0; i < n; ++i) w.template dot<1>(dots + i, x + i * k, row);
  }
  for (int64_t i = 0; i < n; ++i) sums[i] += dots[i];
}

/// Every element is a sum in the order of lane_sum, whatever n. T is the type of x.
template <class T, class Rows, class Out>
void forward_in_place(Out* y, const FloatRows& from, const Rows& w, const T* right, const Tensor& bias, int64_t n,
                      int64_t m) {
  using Half = std::conditional_t<std::is_same_v<T, float>, bf16, T>;  // for a bias that is not fp32
  constexpr int64_t small = int64_t{1} << 15;  // weights below which other threads are not woken
  const auto shift = [=, &bias](int64_t j) {
    if (bias.empty()) return 0.0;
    return double{bias.dtype == DType::f32 ? bias.as<float>()[j] : host::load(bias.as<Half>() + j)};
  };
  host::parallel_blocks(m, m * from.k <= small ? m : 16, [=, &w](int64_t begin, int64_t end) {
    const auto& [x, k, left, rank] = from;
    for (int64_t r = 0; r < n; r += few_rows) {  // from the second iteration on the block's weights are in a cache
      const int64_t rows = std::min(few_rows, n - r);
      for (int64_t j = begin; j < end; ++j) {
        double sums[few_rows]{};
        add_dots(sums, x + r * k, w, j, rows, k);
        if (rank > 0) add_dots(sums, left + r * rank, DenseRows<T>{right, rank}, j, rows, rank);
        for (int64_t i = 0; i < rows; ++i) host::store(y + (r + i) * m + j, static_cast<float>(sums[i] + shift(j)));
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
        forward_in_place(to, from, DequantizedRows{w.quantized(), x.dtype}, right, bias, n, m);
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
