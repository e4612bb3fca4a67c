#include "kernels/adamw.hpp"

#include "core/profile.hpp"
#include "kernels/adamw_arithmetic.hpp"
#include "kernels/host/decided_step.hpp"
#include "kernels/host/element.hpp"
#include "kernels/host/parallel.hpp"

namespace llmtrain {

namespace {

using namespace host;

template <class W>
void update_range(float* p, float* m, float* v, const float* g, W* weights, const AdamwFactors& f, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    f.update(p[i], m[i], v[i], g[i]);
    if constexpr (!std::is_void_v<W>) store(weights + i, p[i]);
  }
}

}  // namespace

void adamw_update(const Tensor& master, const Tensor& m, const Tensor& v, const Tensor& gradient, const Tensor& weights,
                  const AdamwStep& step, Stream& /*stream*/) {
  if (const auto decided = host::decided(step)) adamw_update_on_host(master, m, v, gradient, weights, *decided);
}

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
  float *p = master.as<float>(), *m1 = m.as<float>(), *m2 = v.as<float>();
  const float* g = gradient.as<float>();
  const AdamwFactors factors(step);
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
