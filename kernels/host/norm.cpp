#include "kernels/norm.hpp"

#include <cmath>

#include "kernels/host/column_sum.hpp"
#include "kernels/host/element.hpp"
#include "kernels/host/lanes.hpp"
#include "kernels/host/parallel.hpp"

namespace llmtrain {

namespace {

using namespace host;

constexpr int64_t rows_per_task = 16;

double row_sum(const float* x, int64_t channels) {
  return lane_sum(channels, [x](int64_t i, int64_t n) { return load_up_to(x + i, n); });
}

double row_squares(const float* x, float mean, int64_t channels) {
  return lane_sum(channels, [x, mean](int64_t i, int64_t n) {
    Float8 d = load_up_to(x + i, n) - mean;
    for (int64_t k = n; k < 8; ++k) d[k] = 0;
    return d * d;
  });
}

template <class Y, class W>
void forward_row(NormKind kind, Y* y, const float* x, const W* weight, const W* bias, float epsilon, int64_t channels,
                 float* mean_out, float* rstd_out) {
  const auto n = static_cast<double>(channels);
  const float mean = kind == NormKind::layernorm ? static_cast<float>(row_sum(x, channels) / n) : 0.0f;
  const double variance = row_squares(x, mean, channels) / n;
  const auto rstd = static_cast<float>(1.0 / std::sqrt(variance + double{epsilon}));
  if (mean_out != nullptr) *mean_out = mean;
  *rstd_out = rstd;
  if (bias != nullptr) {
    for (int64_t c = 0; c < channels; ++c) store(y + c, (x[c] - mean) * rstd * load(weight + c) + load(bias + c));
  } else {
    for (int64_t c = 0; c < channels; ++c) store(y + c, (x[c] - mean) * rstd * load(weight + c));
  }
}

/// dx = rstd (g - mean(g) - xhat mean(g xhat)) with g = dy weight; RMSNorm has no mean(g).
template <class D, class W>
void backward_row(const NormBackward& a, float* dx, const D* dy, const float* x, const W* weight, float mean,
                  float rstd, int64_t channels) {
  const auto n = static_cast<double>(channels);
  const auto gradient = [&](int64_t i, int64_t k) { return load_up_to(dy + i, k) * load_up_to(weight + i, k); };
  const auto hat = [&](int64_t i, int64_t k) { return (load_up_to(x + i, k) - mean) * rstd; };
  const double sum = a.kind == NormKind::layernorm ? lane_sum(channels, gradient) : 0.0;
  const double product = lane_sum(channels, [&](int64_t i, int64_t k) { return gradient(i, k) * hat(i, k); });
  const auto mean_gradient = static_cast<float>(sum / n);
  const auto mean_product = static_cast<float>(product / n);
  if (a.accumulate_dx) {
    for (int64_t c = 0; c < channels; ++c) {
      const float g = load(dy + c) * load(weight + c);
      dx[c] += rstd * (g - mean_gradient - (x[c] - mean) * rstd * mean_product);
    }
  } else {
    for (int64_t c = 0; c < channels; ++c) {
      const float g = load(dy + c) * load(weight + c);
      dx[c] = rstd * (g - mean_gradient - (x[c] - mean) * rstd * mean_product);
    }
  }
}

template <class D>
void parameter_gradients(const NormBackward& a, const D* dy) {
  const int64_t rows = a.x.dim(0), channels = a.x.dim(1);
  const float* x = a.x.as<float>();
  const float* means = a.kind == NormKind::layernorm ? a.mean.as<float>() : nullptr;
  const float* rstds = a.rstd.as<float>();
  const bool biased = !a.dbias.empty();
  const auto add_rows = [&](float* sums, int64_t begin, int64_t end, int64_t first, int64_t last) {
    float* bias_sums = sums + channels;
    for (int64_t r = begin; r < end; ++r) {
      const float mean = means != nullptr ? means[r] : 0.0f, rstd = rstds[r];
      const float* xr = x + r * channels;
      const D* dr = dy + r * channels;
      for (int64_t c = first; c < last; ++c) sums[c] += load(dr + c) * ((xr[c] - mean) * rstd);
      if (!biased) continue;
      for (int64_t c = first; c < last; ++c) bias_sums[c] += load(dr + c);
    }
  };
  column_sums({rows, channels, biased ? 2 : 1}, add_rows,
              {a.dweight.as<float>(), biased ? a.dbias.as<float>() : nullptr}, a.accumulate_params);
}

}  // namespace

void norm_forward(NormKind kind, const Tensor& y, const Tensor& mean, const Tensor& rstd, const Tensor& x,
                  const Tensor& weight, const Tensor& bias, float epsilon, Stream& /*stream*/) {
  const int64_t rows = x.dim(0), channels = x.dim(1);
  LLMTRAIN_CHECK(y.numel() == x.numel() && weight.numel() == channels && rstd.numel() >= rows, "shapes of a norm");
  const float* xs = x.as<float>();
  float* means = mean.empty() ? nullptr : mean.as<float>();
  float* rstds = rstd.as<float>();
  dispatch(y, weight, [&](auto* ys, auto* ws) {
    const auto* bs = static_cast<decltype(ws)>(bias.data);
    parallel_blocks(rows, rows_per_task, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        forward_row(kind, ys + r * channels, xs + r * channels, ws, bs, epsilon, channels,
                    means != nullptr ? means + r : nullptr, rstds + r);
      }
    });
  });
}

void norm_backward(const NormBackward& a, Stream& /*stream*/) {
  const int64_t rows = a.x.dim(0), channels = a.x.dim(1);
  LLMTRAIN_CHECK(a.dx.numel() == a.x.numel() && a.dy.numel() == a.x.numel(), "shapes of a norm's gradient");
  dispatch(a.dy, a.weight, [&](auto* dy, auto* weight) {
    parameter_gradients(a, dy);
    const float* x = a.x.as<float>();
    float* dx = a.dx.as<float>();
    const float* means = a.kind == NormKind::layernorm ? a.mean.as<float>() : nullptr;
    const float* rstds = a.rstd.as<float>();
    parallel_blocks(rows, rows_per_task, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        backward_row(a, dx + r * channels, dy + r * channels, x + r * channels, weight,
                     means != nullptr ? means[r] : 0.0f, rstds[r], channels);
      }
    });
  });
}

}  // namespace llmtrain
