#include "kernels/adamw.hpp"

#include <cmath>

#include "core/profile.hpp"
#include "kernels/host/element.hpp"
#include "kernels/host/parallel.hpp"

namespace llmtrain {

namespace {

using namespace host;

/// What the loop needs of a step, in the precision and order in which PyTorch's single-tensor AdamW uses it.
struct Factors {
  explicit Factors(const AdamwStep& s)
      : decay(static_cast<float>(1.0 - s.learning_rate * s.weight_decay)),
        beta2(static_cast<float>(s.beta2)),
        rest1(static_cast<float>(1.0 - s.beta1)),
        rest2(static_cast<float>(1.0 - s.beta2)),
        minus_size(static_cast<float>(-s.learning_rate / (1.0 - std::pow(s.beta1, static_cast<double>(s.step))))),
        root2(static_cast<float>(std::sqrt(1.0 - std::pow(s.beta2, static_cast<double>(s.step))))),
        epsilon(static_cast<float>(s.epsilon)),
        scale(static_cast<float>(s.gradient_scale)) {}
  float decay, beta2, rest1, rest2, minus_size, root2, epsilon, scale;
};

/// Products that are added are written as fma, so that every element has the same arithmetic.
template <class W>
void update_range(float* p, float* m, float* v, const float* g, W* weights, const Factors& f, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float gradient = g[i] * f.scale;
    const float first = std::fma(f.rest1, gradient - m[i], m[i]);
    const float second = std::fma(f.rest2 * gradient, gradient, v[i] * f.beta2);
    const float value = std::fma(p[i], f.decay, f.minus_size * first / (std::sqrt(second) / f.root2 + f.epsilon));
    m[i] = first;
    v[i] = second;
    p[i] = value;
    if constexpr (!std::is_void_v<W>) store(weights + i, value);
  }
}

}  // namespace

void adamw_update(const Tensor& master, const Tensor& m, const Tensor& v, const Tensor& gradient, const Tensor& weights,
                  const AdamwStep& step, Stream& /*stream*/) {
  const ProfileSpan span("adamw_update", [&] {
    return traffic({&master, &master, &m, &m, &v, &v, &gradient, &weights});
  });
  const int64_t n = master.numel();
  LLMTRAIN_CHECK(m.numel() == n && v.numel() == n && gradient.numel() == n, "shapes of an update");
  LLMTRAIN_CHECK(weights.empty() || weights.numel() == n, "one weight per element");
  float *p = master.as<float>(), *m1 = m.as<float>(), *m2 = v.as<float>();
  const float* g = gradient.as<float>();
  const Factors factors(step);
  const auto run = [&](auto* out) {
    parallel_blocks(n, elementwise_block, [&](int64_t begin, int64_t end) {
      using W = std::remove_pointer_t<decltype(out)>;
      if constexpr (std::is_void_v<W>) {
        update_range<void>(p + begin, m1 + begin, m2 + begin, g + begin, nullptr, factors, end - begin);
      } else {
        update_range(p + begin, m1 + begin, m2 + begin, g + begin, out + begin, factors, end - begin);
      }
    });
  };
  if (weights.empty()) {
    run(static_cast<void*>(nullptr));
  } else {
    dispatch(weights.dtype, [&](auto* tag) { run(static_cast<decltype(tag)>(weights.data)); });
  }
}

}  // namespace llmtrain
