#include "core/profile.hpp"
#include "device/processor.hpp"
#include "kernels/host/column_sum.hpp"
#include "kernels/host/element.hpp"
#include "kernels/host/product/gemm.hpp"
#include "kernels/host/product/gemm_tile.hpp"
#include "kernels/host/product/int8_product.hpp"
#include "kernels/host/product/product_shapes.hpp"
#include "kernels/matmul_checks.hpp"

namespace llmtrain {

namespace {

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
  host::GemmShape shape = host::forward_shape(product, x.dtype, y.dtype);
  shape.bias = !bias.empty();
  shape.bias_type = bias.dtype;
  shape.any_rows = role != ProductRole::training;
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
