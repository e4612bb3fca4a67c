#include "core/profile.hpp"
#include "kernels/cuda/column_sum.cuh"
#include "kernels/norm.hpp"

namespace llmtrain {

namespace {

using namespace cuda;

template <class Y, class W>
struct ForwardRow {
  NormKind kind;
  Y* y;
  float *mean, *rstd;
  const float* x;
  const W *weight, *bias;
  float epsilon, offset;
  int64_t channels;

  __device__ void operator()(int64_t row) const {
    const float* in = x + row * channels;
    const double count = static_cast<double>(channels);
    float center = 0;
    if (kind == NormKind::layernorm) {
      double sum = 0;
      for_packs(channels, [&](int64_t i) {
        const Pack p = load_pack(in, i, channels);
        sum += (p.v[0] + p.v[1]) + (p.v[2] + p.v[3]);
      });
      center = static_cast<float>(warp_sum(sum) / count);
    }
    double squares = 0;
    for_packs(channels, [&](int64_t i) {
      const Pack p = load_pack(in, i, channels);
      float sum = 0;
      for (int k = 0; k < Pack::size; ++k) {
        const float d = i + k < channels ? p.v[k] - center : 0.0f;
        sum = fmaf(d, d, sum);
      }
      squares += sum;
    });
    const float scale = static_cast<float>(1.0 / sqrt(warp_sum(squares) / count + double{epsilon}));
    if (lane() == 0) {
      if (mean != nullptr) mean[row] = center;
      rstd[row] = scale;
    }
    for_packs(channels, [&](int64_t i) {
      Pack p = load_pack(in, i, channels);
      const Pack w = load_pack(weight, i, channels);
      const Pack b = bias == nullptr ? Pack{} : load_pack(bias, i, channels);
      for (int k = 0; k < Pack::size; ++k) p.v[k] = fmaf((p.v[k] - center) * scale, offset + w.v[k], b.v[k]);
      store_pack(y + row * channels, i, channels, p);
    });
  }
};

/// With g = dy (offset + weight) and h = (x - mean) rstd: dx = rstd (g - mean(g) - h mean(g h)); RMSNorm has no
/// mean(g).
template <class D, class W>
struct BackwardRow {
  float* dx;
  const D* dy;
  const float* x;
  const W* weight;
  const float *mean, *rstd;
  float offset;
  int64_t channels;
  bool accumulate;

  __device__ void operator()(int64_t row) const {
    const float* in = x + row * channels;
    const D* gradient = dy + row * channels;
    float* out = dx + row * channels;
    const float center = mean == nullptr ? 0.0f : mean[row], scale = rstd[row];
    const auto terms = [&](int64_t i, Pack& g, Pack& h) {
      const Pack w = load_pack(weight, i, channels);
      g = load_pack(gradient, i, channels);
      h = load_pack(in, i, channels);
      for (int k = 0; k < Pack::size; ++k) {
        g.v[k] *= offset + w.v[k];
        h.v[k] = (h.v[k] - center) * scale;
      }
    };
    double g_sum = 0, gh_sum = 0;
    for_packs(channels, [&](int64_t i) {
      Pack g, h;
      terms(i, g, h);
      for (int k = 0; k < Pack::size; ++k) {  // beyond the row g is 0
        g_sum += g.v[k];
        gh_sum += double{g.v[k]} * h.v[k];
      }
    });
    const double count = static_cast<double>(channels);
    const float g_mean = mean == nullptr ? 0.0f : static_cast<float>(warp_sum(g_sum) / count);
    const float gh_mean = static_cast<float>(warp_sum(gh_sum) / count);
    for_packs(channels, [&](int64_t i) {
      Pack g, h;
      terms(i, g, h);
      Pack d = accumulate ? load_pack(out, i, channels) : Pack{};
      for (int k = 0; k < Pack::size; ++k) {
        d.v[k] = fmaf(scale, fmaf(-h.v[k], gh_mean, g.v[k] - g_mean), d.v[k]);
      }
      store_pack(out, i, channels, d);
    });
  }
};

/// dweight += dy h, dbias += dy
template <class D>
struct AddParameters {
  const D* dy;
  const float* x;
  const float *mean, *rstd;
  int64_t channels;
  __device__ void operator()(int64_t row, int64_t column, float* sums) const {
    const int64_t i = row * channels + column;
    const float gradient = load(dy + i), center = mean == nullptr ? 0.0f : mean[row];
    sums[0] = fmaf(gradient, (x[i] - center) * rstd[row], sums[0]);
    sums[1] += gradient;
  }
};

}  // namespace

void norm_forward(const NormForward& a, Stream& stream) {
  const ProfileSpan span("norm_forward", [&] { return traffic({&a.x, &a.y}); });
  const int64_t rows = a.x.dim(0), channels = a.x.dim(1);
  LLMTRAIN_CHECK(a.y.numel() == a.x.numel() && a.weight.numel() == channels && a.rstd.numel() >= rows,
                 "shapes of a norm");
  LLMTRAIN_CHECK(a.bias.empty() || (a.bias.numel() == channels && a.bias.dtype == a.weight.dtype), "bias of a norm");
  float* means = a.mean.empty() || a.kind == NormKind::rmsnorm ? nullptr : a.mean.as<float>();
  dispatch(a.y, a.weight, [&]<class Y, class W>(Y* y, W* weight) {
    for_each_warp(rows, stream,
                  ForwardRow<Y, W>{a.kind, y, means, a.rstd.as<float>(), a.x.as<float>(), weight,
                                   static_cast<const W*>(a.bias.data), a.epsilon, a.weight_offset, channels});
  });
}

void norm_backward(const NormBackward& a, Stream& stream) {
  const ProfileSpan span("norm_backward", [&] {
    return a.accumulate_dx ? traffic({&a.x, &a.dy, &a.dx, &a.dx}) : traffic({&a.x, &a.dy, &a.dx});
  });
  const int64_t rows = a.x.dim(0), channels = a.x.dim(1);
  LLMTRAIN_CHECK(a.dx.numel() == a.x.numel() && a.dy.numel() == a.x.numel() && a.rstd.numel() >= rows &&
                     a.dweight.numel() == channels,
                 "shapes of a norm's gradient");
  const float* means = a.kind == NormKind::layernorm ? a.mean.as<float>() : nullptr;
  const float *x = a.x.as<float>(), *rstd = a.rstd.as<float>();
  dispatch(a.dy, a.weight, [&]<class D, class W>(D* dy, W* weight) {
    // First what reads dy and x: dx may be the same memory as x.
    column_sums(rows, channels, {a.dweight.as<float>(), a.dbias.empty() ? nullptr : a.dbias.as<float>()},
                a.accumulate_params, stream, AddParameters<D>{dy, x, means, rstd, channels});
    for_each_warp(
        rows, stream,
        BackwardRow<D, W>{a.dx.as<float>(), dy, x, weight, means, rstd, a.weight_offset, channels, a.accumulate_dx});
  });
}

}  // namespace llmtrain
