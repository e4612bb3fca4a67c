// The update on the host's processors, in both builds: a GPU's offloaded state is updated here too.

#include "kernels/adamw_8bit.hpp"

#include <array>
#include <type_traits>

#include "core/profile.hpp"
#include "kernels/adamw_8bit_arithmetic.hpp"

namespace llmtrain {

namespace {

/// Updates the elements of one chunk; decays those in [decay_begin, decay_end).
void update_chunk(const Adamw8bitFactors& f, const Adamw8bitTensors& t, int64_t chunk) {
  const int64_t at = chunk * chunk_elements;
  float* p = t.master.as<float>() + at;
  const float* g = t.gradient.as<float>() + at;
  uint8_t *m_codes = t.m.as<uint8_t>() + at, *v_codes = t.v.as<uint8_t>() + at;
  float &m_scale = t.m_scale.as<float>()[chunk], &v_scale = t.v_scale.as<float>()[chunk];
  std::array<float, chunk_elements> m{}, v{};
  float m_largest = 0, v_largest = 0;
  for (size_t i = 0; i < m.size(); ++i) {
    const int64_t element = at + static_cast<int64_t>(i);
    m[i] = rounded_product(signed_dynamic_map[m_codes[i]], m_scale);
    v[i] = rounded_product(unsigned_dynamic_map[v_codes[i]], v_scale);
    f.update(p[i], m[i], v[i], g[i], element >= t.decay_begin && element < t.decay_end);
    m_largest = std::max(m_largest, std::fabs(m[i]));
    v_largest = std::max(v_largest, v[i]);
  }
  m_scale = m_largest;
  v_scale = v_largest;
  for (size_t i = 0; i < m.size(); ++i) {
    m_codes[i] = Adamw8bitFactors::code_of_m(signed_dynamic_map.data(), m[i], m_largest);
    v_codes[i] = Adamw8bitFactors::code_of_v(unsigned_dynamic_map.data(), v[i], v_largest);
  }
}

template <class W>
void update(const Adamw8bitFactors& f, const Adamw8bitTensors& t, W* weights) {
  const int64_t chunks = t.master.numel() / chunk_elements;
  const float* p = t.master.as<float>();
#pragma omp parallel for schedule(static)
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    update_chunk(f, t, chunk);
    if constexpr (!std::is_void_v<W>) {
      for (int64_t i = chunk * chunk_elements; i < (chunk + 1) * chunk_elements; ++i) weights[i] = W(p[i]);
    }
  }
}

}  // namespace

void adamw_8bit_update_on_host(const Adamw8bitTensors& t, const AdamwStep& step) {
  const ProfileSpan span("adamw_8bit_update_on_host", [&] {
    return traffic({&t.master, &t.master, &t.m, &t.m, &t.v, &t.v, &t.gradient, &t.weights});
  });
  LLMTRAIN_CHECK(step.decision.empty(), "an update on the host must not have a device decision");
  check_update(t);
  const Adamw8bitFactors factors(step);
  if (t.weights.empty()) return update<void>(factors, t, nullptr);
  if (t.weights.dtype == DType::f32) return update(factors, t, t.weights.as<float>());
  if (t.weights.dtype == DType::bf16) return update(factors, t, t.weights.as<bf16>());
  update(factors, t, t.weights.as<f16>());
}

}  // namespace llmtrain
