#include "kernels/norm.hpp"

#include <cmath>

#include "core/profile.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/host/column_sum.hpp"
#include "kernels/host/element.hpp"
#include "kernels/host/lanes.hpp"
#include "kernels/host/parallel.hpp"

namespace llmtrain {

namespace {

using namespace host;

constexpr int64_t rows_per_task = 8;

double row_sum(const float* x, int64_t channels) {
  return lane_sum(channels, [x](int64_t i, int64_t n) { return load_up_to(x + i, n); });
}

double row_squares(const float* x, float mean, int64_t channels) {
  return lane_sum(channels, [x, mean](int64_t i, int64_t n) {
    const Float8 d = (n >= 8 ? load8(x + i) : load8(x + i, n, mean)) - mean;
    return d * d;
  });
}

struct RowStatistics {
  float mean;
  float rstd;
};

RowStatistics row_statistics(NormKind kind, const float* x, float epsilon, int64_t channels) {
  const auto n = static_cast<double>(channels);
  const float mean = kind == NormKind::layernorm ? static_cast<float>(row_sum(x, channels) / n) : 0.0f;
  const double variance = row_squares(x, mean, channels) / n;
  return {mean, static_cast<float>(1.0 / std::sqrt(variance + double{epsilon}))};
}

template <class Y, class W>
void normalize_row(Y* y, const float* x, const W* weight, float offset, const W* bias, RowStatistics s,
                   int64_t channels) {
  if (bias == nullptr) {  // NOLINT(bugprone-branch-clone): it does not see into the loops
#pragma omp simd
    for (int64_t c = 0; c < channels; ++c) store(y + c, (x[c] - s.mean) * s.rstd * (offset + load(weight + c)));
  } else {
#pragma omp simd
    for (int64_t c = 0; c < channels; ++c) {
      store(y + c, std::fma((x[c] - s.mean) * s.rstd, offset + load(weight + c), load(bias + c)));
    }
  }
}

/// The backward pass of a row. With g = dy (offset + weight) and h = (x - mean) rstd: dx = rstd (g - mean(g) - h mean(g
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
  float* dbias = a.dbias.empty() ? nullptr : a.dbias.as<float>();
  const auto rows = [=, &a](float* sums, int64_t begin, int64_t end, int64_t /*first*/, int64_t /*last*/) {
    for (int64_t r = begin; r < end; ++r) {
      const RowStatistics s{centered ? means[r] : 0.0f, rstds[r]};
      const RowGradient<D, W> row{dy + r * channels, x + r * channels, weight, a.weight_offset, s, channels};
      row.add_parameters(sums, dbias == nullptr ? nullptr : sums + channels);
      row.write(dx + r * channels, centered ? static_cast<float>(row.mean_g()) : 0.0f,
                static_cast<float>(row.mean_gh()), a.accumulate_dx);
    }
  };
  const ColumnSumShape shape{a.x.dim(0), channels, dbias == nullptr ? 1 : 2, true};
  column_sums(shape, rows, {a.dweight.as<float>(), dbias}, a.accumulate_params);
}

}  // namespace

void norm_forward(const NormForward& a, Stream& /*stream*/) {
  const ProfileSpan span("norm_forward", [&] { return traffic({&a.x, &a.y}); });
  const int64_t rows = a.x.dim(0), channels = a.x.dim(1);
  LLMTRAIN_CHECK(a.y.numel() == a.x.numel() && a.weight.numel() == channels && a.rstd.numel() >= rows,
                 "shapes of a norm");
  LLMTRAIN_CHECK(a.bias.empty() || (a.bias.numel() == channels && a.bias.dtype == a.weight.dtype), "bias of a norm");
  const float* xs = a.x.as<float>();
  float* means = a.mean.empty() || a.kind == NormKind::rmsnorm ? nullptr : a.mean.as<float>();
  float* rstds = a.rstd.as<float>();
  dispatch(a.y, a.weight, [&](auto* ys, auto* ws) {
    const auto* bs = static_cast<decltype(ws)>(a.bias.data);
    parallel_blocks(rows, rows_per_task, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const RowStatistics s = row_statistics(a.kind, xs + r * channels, a.epsilon, channels);
        if (means != nullptr) means[r] = s.mean;
        rstds[r] = s.rstd;
        normalize_row(ys + r * channels, xs + r * channels, ws, a.weight_offset, bs, s, channels);
      }
    });
  });
}

void norm_backward(const NormBackward& a, Stream& /*stream*/) {
  const ProfileSpan span("norm_backward", [&] {
    return a.accumulate_dx ? traffic({&a.x, &a.dy, &a.dx, &a.dx}) : traffic({&a.x, &a.dy, &a.dx});
  });
  LLMTRAIN_CHECK(a.dx.numel() == a.x.numel() && a.dy.numel() == a.x.numel() && a.rstd.numel() >= a.x.dim(0) &&
                     a.dweight.numel() == a.x.dim(1),
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
