#include "core/profile.hpp"
#include "kernels/adamw.hpp"
#include "kernels/adamw_arithmetic.hpp"
#include "kernels/cuda/launch.cuh"
#include "kernels/step_decision.hpp"

namespace llmtrain {

namespace {

using namespace cuda;

template <class W>
struct Update {
  int64_t elements;
  float *p, *m, *v;
  const float* g;
  W* weights;
  AdamwFactors of_step;
  const StepDecision* decision;

  __device__ void operator()(int64_t pack) const {
    AdamwFactors factors = of_step;
    if (decision != nullptr) {
      if (decision->applies == 0) return;
      factors.scale = static_cast<float>(decision->factor);
    }
    const int64_t i = pack * Pack::size;
    Pack value = load_pack(p, i, elements), first = load_pack(m, i, elements), second = load_pack(v, i, elements);
    const Pack gradient = load_pack(g, i, elements);
    for (int k = 0; k < Pack::size; ++k) factors.update(value.v[k], first.v[k], second.v[k], gradient.v[k]);
    store_pack(p, i, elements, value);
    store_pack(m, i, elements, first);
    store_pack(v, i, elements, second);
    if (weights != nullptr) store_pack(weights, i, elements, value);
  }
};

}  // namespace

void adamw_update(const Tensor& master, const Tensor& m, const Tensor& v, const Tensor& gradient, const Tensor& weights,
                  const AdamwStep& step, Stream& stream) {
  const ProfileSpan span("adamw_update", [&] {
    return traffic({&master, &master, &m, &m, &v, &v, &gradient, &weights});
  });
  const int64_t n = master.numel();
  LLMTRAIN_CHECK(m.numel() == n && v.numel() == n && gradient.numel() == n,
                 "the tensors of an update must have equal sizes");
  LLMTRAIN_CHECK(weights.empty() || weights.numel() == n, "one weight per element");
  dispatch(weights, [&]<class W>(W* out) {
    for_each((n + Pack::size - 1) / Pack::size, stream,
             Update<W>{n, master.as<float>(), m.as<float>(), v.as<float>(), gradient.as<float>(), out,
                       AdamwFactors(step), decision_in(step.decision)});
  });
}

}  // namespace llmtrain
