// The update on the host's processors, in both builds: a GPU's offloaded state is updated here too.

#include <omp.h>

#include <algorithm>
#include <type_traits>

#include "core/profile.hpp"
#include "kernels/adamw.hpp"
#include "kernels/adamw_arithmetic.hpp"

namespace llmtrain {

namespace {

constexpr int64_t block = 16384;  ///< elements per work item of a thread

template <class W>
void update_range(const AdamwFactors& f, float* p, float* m, float* v, const float* g, W* weights, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    f.update(p[i], m[i], v[i], g[i]);
    if constexpr (!std::is_void_v<W>) weights[i] = W(p[i]);
  }
}

template <class W>
void update(const AdamwFactors& f, const Tensor& master, const Tensor& m, const Tensor& v, const Tensor& gradient,
            W* weights) {
  const int64_t n = master.numel();
  float *p = master.as<float>(), *first = m.as<float>(), *second = v.as<float>();
  const float* g = gradient.as<float>();
  const auto update_block = [&](int64_t at) {
    const int64_t count = std::min(block, n - at);
    if constexpr (std::is_void_v<W>) {
      update_range<void>(f, p + at, first + at, second + at, g + at, nullptr, count);
    } else {
      update_range(f, p + at, first + at, second + at, g + at, weights + at, count);
    }
  };
  if (n <= block || omp_get_max_threads() == 1) {  // a team of one thread would be allocated each time
    for (int64_t at = 0; at < n; at += block) update_block(at);
    return;
  }
#pragma omp parallel for schedule(static)
  for (int64_t at = 0; at < n; at += block) update_block(at);
}

}  // namespace

void adamw_update_on_host(const Tensor& master, const Tensor& m, const Tensor& v, const Tensor& gradient,
                          const Tensor& weights, const AdamwStep& step) {
  const ProfileSpan span("adamw_update", [&] {
    return traffic({&master, &master, &m, &m, &v, &v, &gradient, &weights});
  });
  const int64_t n = master.numel();
  LLMTRAIN_CHECK(step.decision.empty(), "an update on the host must not have a device decision");
  LLMTRAIN_CHECK(m.numel() == n && v.numel() == n && gradient.numel() == n,
                 "the tensors of an update must have equal sizes");
  LLMTRAIN_CHECK(weights.empty() || weights.numel() == n, "one weight per element");
  const AdamwFactors factors(step);
  if (weights.empty()) return update<void>(factors, master, m, v, gradient, nullptr);
  if (weights.dtype == DType::f32) return update(factors, master, m, v, gradient, weights.as<float>());
  if (weights.dtype == DType::bf16) return update(factors, master, m, v, gradient, weights.as<bf16>());
  update(factors, master, m, v, gradient, weights.as<f16>());
}

}  // namespace llmtrain
