#include "core/profile.hpp"
#include "kernels/cuda/launch.cuh"
#include "kernels/momentum_arithmetic.hpp"
#include "kernels/momentum_update.hpp"
#include "kernels/step_decision.hpp"

namespace llmtrain {

namespace {

using namespace cuda;

template <class Factors, class W>
struct MomentumUpdate {
  int64_t elements;
  float *p, *m;
  const float* g;
  W* weights;
  Factors of_step;
  const StepDecision* decision;

  __device__ void operator()(int64_t pack) const {
    Factors factors = of_step;
    if (decision != nullptr) {
      if (decision->applies == 0) return;
      factors.scale = static_cast<float>(decision->factor);
    }
    const int64_t i = pack * Pack::size;
    Pack value = load_pack(p, i, elements), first{};
    if (m != nullptr) first = load_pack(m, i, elements);
    const Pack gradient = load_pack(g, i, elements);
    for (int k = 0; k < Pack::size; ++k) factors.update(value.v[k], first.v[k], gradient.v[k]);
    store_pack(p, i, elements, value);
    if (m != nullptr) store_pack(m, i, elements, first);
    if (weights != nullptr) store_pack(weights, i, elements, value);
  }
};

template <class Factors>
void update(const char* name, const UpdateTensors& t, const Factors& factors, const Tensor& decision, Stream& stream) {
  const ProfileSpan span(name, [&] {
    return traffic({&t.master, &t.master, &t.momentum, &t.momentum, &t.gradient, &t.weights});
  });
  check_update(t);
  const int64_t n = t.master.numel();
  float* momentum = t.momentum.empty() ? nullptr : t.momentum.as<float>();
  dispatch(t.weights, [&]<class W>(W* out) {
    for_each((n + Pack::size - 1) / Pack::size, stream,
             MomentumUpdate<Factors, W>{n, t.master.as<float>(), momentum, t.gradient.as<float>(), out, factors,
                                        decision_in(decision)});
  });
}

}  // namespace

void momentum_update(const UpdateTensors& tensors, const SgdStep& step, Stream& stream) {
  update("sgd_update", tensors, SgdFactors(step), step.decision, stream);
}

void momentum_update(const UpdateTensors& tensors, const LionStep& step, Stream& stream) {
  update("lion_update", tensors, LionFactors(step), step.decision, stream);
}

}  // namespace llmtrain
