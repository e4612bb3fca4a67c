#include "kernels/matmul.hpp"

#include <algorithm>

#include "core/profile.hpp"
#include "kernels/host/column_sum.hpp"
#include "kernels/host/gemm.hpp"
#include "kernels/host/lanes.hpp"
#include "kernels/host/parallel.hpp"

namespace llmtrain {

namespace {

/// Up to this many rows (decoding) weights are read once, in place: packing them would cost more than the product.
constexpr int64_t few_rows = 4;

bool is_matrix(const Tensor& t, int64_t rows, int64_t columns) {
  return t.rank == 2 && t.dim(0) == rows && t.dim(1) == columns;
}

double product_flops(int64_t n, int64_t m, int64_t k) {
  return 2.0 * static_cast<double>(n) * static_cast<double>(m) * static_cast<double>(k);
}

void check_types(const Tensor& a, const Tensor& b, const Tensor& result) {
  LLMTRAIN_CHECK(a.dtype == b.dtype && (a.dtype == DType::f32 || a.dtype == DType::bf16),
                 "matrix products take two operands in fp32 or in bf16");
  LLMTRAIN_CHECK(result.dtype == DType::f32 || result.dtype == a.dtype, "a product is fp32 or of the operands' dtype");
}

/// out[r] = x row r . w for R rows at once; every sum in the order of lane_sum.
template <int R, class T>
void dot_rows(double* out, const float* x, const T* w, int64_t k) {
  host::Float8 low[R] = {};
  host::Float8 high[R] = {};
  int64_t i = 0;
  for (; i + host::lane_count <= k; i += host::lane_count) {
    const host::Float8 w_low = host::load8(w + i);
    const host::Float8 w_high = host::load8(w + i + 8);
    for (int r = 0; r < R; ++r) {
      low[r] += host::load8(x + r * k + i) * w_low;
      high[r] += host::load8(x + r * k + i + 8) * w_high;
    }
  }
  if (i < k) {
    const int64_t rest = k - i;
    const host::Float8 w_low = host::load_up_to(w + i, rest);
    const host::Float8 w_high = rest > 8 ? host::load_up_to(w + i + 8, rest - 8) : host::Float8{};
    for (int r = 0; r < R; ++r) {
      const float* row = x + r * k + i;
      low[r] += host::load_up_to(row, rest) * w_low;
      if (rest > 8) high[r] += host::load_up_to(row + 8, rest - 8) * w_high;
    }
  }
  for (int r = 0; r < R; ++r) out[r] = host::LaneSum(low[r], high[r]).fold();
}

/// Decoding: x in fp32, weights of type T read once and in place.
template <class T, class Out>
void few_rows_forward(Out* y, const float* x, const T* w, const Tensor& bias, int64_t n, int64_t m, int64_t k) {
  constexpr int64_t small = int64_t{1} << 15;  // weights that are read before other threads wake up
  host::parallel_blocks(m, m * k <= small ? m : 16, [=](int64_t begin, int64_t end) {
    for (int64_t j = begin; j < end; ++j) {
      double sums[few_rows];
      int64_t r = 0;
      for (; r + 4 <= n; r += 4) dot_rows<4>(sums + r, x + r * k, w + j * k, k);
      for (; r < n; ++r) dot_rows<1>(sums + r, x + r * k, w + j * k, k);
      double shift = 0;
      if (!bias.empty()) {
        shift = bias.dtype == DType::f32 ? bias.as<float>()[j] : static_cast<float>(bias.as<bf16>()[j]);
      }
      for (r = 0; r < n; ++r) host::store(y + r * m + j, static_cast<float>(sums[r] + shift));
    }
  });
}

const float* as_float(const Tensor& x) {
  if (x.dtype == DType::f32) return x.as<float>();
  float* wide = host::scratch(x.numel());
  const bf16* from = x.as<bf16>();
  for (int64_t i = 0; i < x.numel(); ++i) wide[i] = static_cast<float>(from[i]);
  return wide;
}

}  // namespace

void linear_forward(const Tensor& y, const Tensor& x, const Tensor& w, const Tensor& bias, Stream&) {
  const int64_t n = x.dim(0), m = w.dim(0), k = w.dim(1);
  LLMTRAIN_CHECK(is_matrix(x, n, k) && is_matrix(w, m, k) && is_matrix(y, n, m), "y[N, M] = x[N, K] w[M, K]^T");
  LLMTRAIN_CHECK(bias.empty() || bias.numel() == m, "a bias has one element per output");
  check_types(x, w, y);
  if (n == 0 || m == 0) return;
  const ProfileSpan span("linear_forward", [&] { return traffic({&y, &x, &w}, product_flops(n, m, k)); });
  if (n <= few_rows) {
    host::dispatch(x.dtype, [&](auto* tag) {
      host::dispatch(y.dtype, [&](auto* out) {
        using T = std::remove_pointer_t<decltype(tag)>;
        few_rows_forward(static_cast<decltype(out)>(y.data), as_float(x), w.as<T>(), bias, n, m, k);
      });
    });
    return;
  }
  host::GemmShape shape{.m = n, .n = m, .k = k, .b_transposed = true, .input = x.dtype, .output = y.dtype};
  shape.bias = !bias.empty();
  shape.bias_type = bias.dtype;
  host::gemm(shape, x.data, w.data, y.data, bias.data);
}

void linear_backward_input(const Tensor& dx, const Tensor& dy, const Tensor& w, bool accumulate, Stream&) {
  const int64_t n = dy.dim(0), m = w.dim(0), k = w.dim(1);
  LLMTRAIN_CHECK(is_matrix(dx, n, k) && is_matrix(w, m, k) && is_matrix(dy, n, m), "dx[N, K] = dy[N, M] w[M, K]");
  LLMTRAIN_CHECK(!accumulate || dx.dtype == DType::f32, "gradients are accumulated in fp32");
  check_types(dy, w, dx);
  if (n == 0) return;
  const ProfileSpan span("linear_backward_input", [&] { return traffic({&dx, &dy, &w}, product_flops(n, m, k)); });
  host::gemm({.m = n, .n = k, .k = m, .accumulate = accumulate, .input = dy.dtype, .output = dx.dtype}, dy.data, w.data,
             dx.data, nullptr);
}

void linear_backward_weight(const Tensor& dw, const Tensor& dy, const Tensor& x, bool accumulate, Stream& stream) {
  const int64_t n = dy.dim(0), m = dy.dim(1), k = x.dim(1);
  LLMTRAIN_CHECK(is_matrix(dw, m, k) && is_matrix(x, n, k) && is_matrix(dy, n, m), "dw[M, K] = dy[N, M]^T x[N, K]");
  LLMTRAIN_CHECK(dw.dtype == DType::f32, "weight gradients are fp32");
  check_types(dy, x, dw);
  const ProfileSpan span("linear_backward_weight", [&] { return traffic({&dw, &dy, &x}, product_flops(n, m, k)); });
  if (n == 0) {
    if (!accumulate) fill_zero(dw.data, dw.bytes(), stream);
    return;
  }
  host::gemm({.m = m, .n = k, .k = n, .a_transposed = true, .accumulate = accumulate, .input = dy.dtype}, dy.data,
             x.data, dw.data, nullptr);
}

void linear_backward_bias(const Tensor& db, const Tensor& dy, bool accumulate, Stream&) {
  LLMTRAIN_CHECK(dy.rank == 2 && db.numel() == dy.dim(1) && db.dtype == DType::f32, "db[M] = sum of rows of dy[N, M]");
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
