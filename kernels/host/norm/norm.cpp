#include "kernels/norm.hpp"

#include "core/profile.hpp"
#include "device/processor.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/host/column_sum.hpp"
#include "kernels/host/element.hpp"
#include "kernels/host/lanes.hpp"
#include "kernels/host/norm/norm_rows.hpp"
#include "kernels/host/parallel.hpp"

namespace llmtrain {

namespace {

using namespace host;

constexpr int64_t rows_per_task = 8;

struct RowStatistics {
  float mean;
  float rstd;
};

void forward_rows(const NormForwardRows& rows) {
#if defined(__x86_64__)
  static const bool wide = processor_has(Instructions::avx512);
  if (wide) return norm_rows_avx512(rows);
#endif
  NormRows<Float8>::forward(rows);
}

/// Backward pass of a row. With g = dy (offset + weight) and h = (x - mean) rstd: dx = rstd (g - mean(g) - h mean(g
/// h)); RMSNorm has no mean(g).
template <class D, class W>
struct RowGradient {
  const D* dy;
  const float* x;
  const W* weight;
  float offset;
  RowStatistics s;
  int64_t channels;

  double mean_g() const {
    const auto term = [this](int64_t i, int64_t n) { return gradient(i, n); };
    return lane_sum(channels, term) / static_cast<double>(channels);
  }
  double mean_gh() const {
    const auto term = [this](int64_t i, int64_t n) {
      return gradient(i, n) * ((load_up_to(x + i, n) - s.mean) * s.rstd);
    };
    return lane_sum(channels, term) / static_cast<double>(channels);
  }
  void write(float* dx, float g_mean, float gh_mean, bool accumulate) const {
#pragma omp simd
    for (int64_t c = 0; c < channels; ++c) {
      const float g = load(dy + c) * (offset + load(weight + c));
      const float h = (x[c] - s.mean) * s.rstd;
      dx[c] = std::fma(s.rstd, std::fma(-h, gh_mean, g - g_mean), accumulate ? dx[c] : 0.0f);
    }
  }
  /// dweight += dy h, dbias += dy
  void add_parameters(float* dweight, float* dbias) const {
#pragma omp simd
    for (int64_t c = 0; c < channels; ++c) {
      dweight[c] = std::fma(load(dy + c), (x[c] - s.mean) * s.rstd, dweight[c]);
    }
    if (dbias == nullptr) return;
#pragma omp simd
    for (int64_t c = 0; c < channels; ++c) dbias[c] += load(dy + c);
  }

 private:
  Float8 gradient(int64_t i, int64_t n) const { return load_up_to(dy + i, n) * (offset + load_up_to(weight + i, n)); }
};

/// One pass over the rows for all gradients.
template <class D, class W>
void backward_rows(const NormBackward& a, const D* dy, const W* weight) {
  const int64_t channels = a.x.dim(1);
  const bool centered = a.kind == NormKind::layernorm;
  const float* x = a.x.as<float>();
  const float* means = centered ? a.mean.as<float>() : nullptr;
  const float* rstds = a.rstd.as<float>();
  float* dx = a.dx.as<float>();
  float* dweight = a.dweight.empty() ? nullptr : a.dweight.as<float>();
  float* dbias = a.dbias.empty() ? nullptr : a.dbias.as<float>();
  const auto rows = [=, &a](float* sums, int64_t begin, int64_t end, int64_t /*first*/, int64_t /*last*/) {
    for (int64_t r = begin; r < end; ++r) {
      const RowStatistics s{centered ? means[r] : 0.0f, rstds[r]};
      const RowGradient<D, W> row{dy + r * channels, x + r * channels, weight, a.weight_offset, s, channels};
      if (dweight != nullptr || dbias != nullptr) {
        row.add_parameters(sums, dbias == nullptr ? nullptr : sums + channels);
      }
      row.write(dx + r * channels, centered ? static_cast<float>(row.mean_g()) : 0.0f,
                static_cast<float>(row.mean_gh()), a.accumulate_dx);
    }
  };
  const ColumnSumShape shape{a.x.dim(0), channels, dbias == nullptr ? 1 : 2, true};
  column_sums(shape, rows, {dweight, dbias}, a.accumulate_params);
}

}  // namespace

void norm_forward(const NormForward& a, Stream& /*stream*/) {
  const ProfileSpan span("norm_forward", [&] { return traffic({&a.x, &a.y}); });
  const int64_t rows = a.x.dim(0), channels = a.x.dim(1);
  LLMTRAIN_CHECK(a.y.numel() == a.x.numel() && a.weight.numel() == channels && a.rstd.numel() >= rows,
                 "shapes of a norm");
  LLMTRAIN_CHECK(a.kind == NormKind::rmsnorm || a.mean.numel() >= rows, "LayerNorm keeps its means");
  LLMTRAIN_CHECK(a.bias.empty() || (a.bias.numel() == channels && a.bias.dtype == a.weight.dtype), "bias of a norm");
  dispatch(a.y, a.weight, [](auto*, auto*) {});  // rejects types without a loop
  const bool centered = a.kind == NormKind::layernorm;
  const int64_t y_row = channels * static_cast<int64_t>(size_of(a.y.dtype));
  parallel_blocks(rows, rows_per_task, [&](int64_t begin, int64_t end) {
    forward_rows({centered, a.again, end - begin, channels, a.x.as<float>() + begin * channels,
                  static_cast<char*>(a.y.data) + begin * y_row, a.y.dtype,
                  centered ? a.mean.as<float>() + begin : nullptr, a.rstd.as<float>() + begin, a.weight.data,
                  a.bias.data, a.weight.dtype, a.weight_offset, a.epsilon});
  });
}

void norm_backward(const NormBackward& a, Stream& /*stream*/) {
  const ProfileSpan span("norm_backward", [&] {
    return a.accumulate_dx ? traffic({&a.x, &a.dy, &a.dx, &a.dx}) : traffic({&a.x, &a.dy, &a.dx});
  });
  LLMTRAIN_CHECK(a.dx.numel() == a.x.numel() && a.dy.numel() == a.x.numel() && a.rstd.numel() >= a.x.dim(0) &&
                     (a.dweight.empty() || a.dweight.numel() == a.x.dim(1)),
                 "shapes of a norm's gradient");
  dispatch(a.dy, a.weight, [&](auto* dy, auto* weight) {
    using D = std::remove_pointer_t<decltype(dy)>;
    using W = std::remove_pointer_t<decltype(weight)>;
    backward_rows<D, W>(a, dy, weight);
  });
}

void residual_norm_forward(const NormForward& a, const Tensor& in, const ResidualBranch& branch, Stream& stream) {
  residual_add(a.x, in, branch.delta, branch.batch, branch.dropout, stream);
  norm_forward(a, stream);
}

void residual_norm_backward(const NormBackward& a, const ResidualBranch& branch, Stream& stream) {
  norm_backward(a, stream);
  residual_add_backward(branch.delta, a.dx, branch.batch, branch.dropout, stream);
}

}  // namespace llmtrain
