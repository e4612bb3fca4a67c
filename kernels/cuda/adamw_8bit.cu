#include "core/profile.hpp"
#include "kernels/adamw_8bit.hpp"
#include "kernels/adamw_8bit_arithmetic.hpp"
#include "kernels/cuda/launch.cuh"
#include "kernels/step_decision.hpp"

namespace llmtrain {

namespace {

using namespace cuda;

/// A warp updates a chunk, each lane consecutive elements.
template <class W>
struct Update {
  static constexpr int held = chunk_elements / warp_lanes;
  float* p;
  uint8_t *m, *v;
  float *m_scale, *v_scale;
  const float* g;
  W* weights;
  int64_t decay_begin, decay_end;
  Adamw8bitFactors of_step;
  const StepDecision* decision;
  DynamicMap m_map, v_map;

  __device__ void operator()(int64_t chunk) const {
    Adamw8bitFactors factors = of_step;
    if (decision != nullptr) {
      if (decision->applies == 0) return;
      factors.scale = static_cast<float>(decision->factor);
    }
    const int64_t at = chunk * chunk_elements + lane() * held;
    const float old_m = m_scale[chunk], old_v = v_scale[chunk];
    float first[held], second[held], m_largest = 0, v_largest = 0;
    LLMTRAIN_UNROLL
    for (int i = 0; i < held; ++i) {
      first[i] = rounded_product(m_map[m[at + i]], old_m);
      second[i] = rounded_product(v_map[v[at + i]], old_v);
      float value = p[at + i];
      factors.update(value, first[i], second[i], g[at + i], at + i >= decay_begin && at + i < decay_end);
      p[at + i] = value;
      if (weights != nullptr) store(weights + at + i, value);
      m_largest = fmaxf(m_largest, fabsf(first[i]));
      v_largest = fmaxf(v_largest, second[i]);
    }
    m_largest = warp_maximum(m_largest);
    v_largest = warp_maximum(v_largest);
    LLMTRAIN_UNROLL
    for (int i = 0; i < held; ++i) {
      m[at + i] = Adamw8bitFactors::code_of_m(&m_map[0], first[i], m_largest);
      v[at + i] = Adamw8bitFactors::code_of_v(&v_map[0], second[i], v_largest);
    }
    if (lane() != 0) return;  // every lane has read the scales: the maxima needed all of them
    m_scale[chunk] = m_largest;
    v_scale[chunk] = v_largest;
  }
};

}  // namespace

void adamw_8bit_update(const Adamw8bitTensors& t, const AdamwStep& step, Stream& stream) {
  const ProfileSpan span("adamw_8bit_update", [&] {
    return traffic({&t.master, &t.master, &t.m, &t.m, &t.v, &t.v, &t.gradient, &t.weights});
  });
  check_update(t);
  dispatch(t.weights, [&]<class W>(W* out) {
    for_each_warp(
        t.master.numel() / chunk_elements, stream,
        Update<W>{t.master.as<float>(), t.m.as<uint8_t>(), t.v.as<uint8_t>(), t.m_scale.as<float>(),
                  t.v_scale.as<float>(), t.gradient.as<float>(), out, t.decay_begin, t.decay_end,
                  Adamw8bitFactors(step), decision_in(step.decision), signed_dynamic_map, unsigned_dynamic_map});
  });
}

}  // namespace llmtrain
