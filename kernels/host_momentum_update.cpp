// Updates on the host's processors, in both builds: a GPU's offloaded state is updated here too.

#include <algorithm>
#include <type_traits>

#include "core/profile.hpp"
#include "kernels/momentum_arithmetic.hpp"
#include "kernels/momentum_update.hpp"

namespace llmtrain {

namespace {

constexpr int64_t block = 16384;  ///< elements per work item of a thread

struct Range {
  float* p;
  float* m;  ///< null: no momentum
  const float* g;
  int64_t elements;
};

template <class W, class Factors>
void update_range(const Factors& f, const Range& r, W* weights) {
  if (r.m == nullptr) {
#pragma omp simd
    for (int64_t i = 0; i < r.elements; ++i) {
      float none = 0;
      f.update(r.p[i], none, r.g[i]);
      if constexpr (!std::is_void_v<W>) weights[i] = W(r.p[i]);
    }
    return;
  }
#pragma omp simd
  for (int64_t i = 0; i < r.elements; ++i) {
    f.update(r.p[i], r.m[i], r.g[i]);
    if constexpr (!std::is_void_v<W>) weights[i] = W(r.p[i]);
  }
}

template <class W, class Factors>
void update(const Factors& f, const UpdateTensors& t, W* weights) {
  const int64_t n = t.master.numel();
  float *p = t.master.as<float>(), *m = t.momentum.empty() ? nullptr : t.momentum.as<float>();
  const float* g = t.gradient.as<float>();
#pragma omp parallel for schedule(static)
  for (int64_t at = 0; at < n; at += block) {
    const Range range{p + at, m == nullptr ? nullptr : m + at, g + at, std::min(block, n - at)};
    if constexpr (std::is_void_v<W>) {
      update_range<void>(f, range, nullptr);
    } else {
      update_range(f, range, weights + at);
    }
  }
}

template <class Factors>
void update_all(const char* name, const UpdateTensors& t, const Factors& factors) {
  const ProfileSpan span(name, [&] {
    return traffic({&t.master, &t.master, &t.momentum, &t.momentum, &t.gradient, &t.weights});
  });
  check_update(t);
  if (t.weights.empty()) return update<void>(factors, t, nullptr);
  if (t.weights.dtype == DType::f32) return update(factors, t, t.weights.as<float>());
  if (t.weights.dtype == DType::bf16) return update(factors, t, t.weights.as<bf16>());
  update(factors, t, t.weights.as<f16>());
}

}  // namespace

void momentum_update_on_host(const UpdateTensors& tensors, const SgdStep& step) {
  LLMTRAIN_CHECK(step.decision.empty(), "an update on the host must not have a device decision");
  update_all("sgd_update_on_host", tensors, SgdFactors(step));
}

void momentum_update_on_host(const UpdateTensors& tensors, const LionStep& step) {
  LLMTRAIN_CHECK(step.decision.empty(), "an update on the host must not have a device decision");
  update_all("lion_update_on_host", tensors, LionFactors(step));
}

}  // namespace llmtrain
