// The update on the host's processors, in both builds: a GPU's offloaded state is updated here too.

#include <algorithm>
#include <array>
#include <type_traits>

#include "core/profile.hpp"
#include "kernels/adamw_8bit.hpp"
#include "kernels/adamw_8bit_arithmetic.hpp"

namespace llmtrain {

namespace {

using Values = std::array<float, chunk_elements>;
using Codes = std::array<int32_t, chunk_elements>;

/// nearest_code() of x / largest, step by step for all elements: several at once.
void find_codes(const DynamicMap& map, const Values& values, float largest, Codes& codes) {
  Values x{};
  const float divisor = largest > 0 ? largest : 1;
#pragma omp simd
  for (size_t i = 0; i < x.size(); ++i) x[i] = values[i] / divisor;
  codes.fill(127);
  for (int32_t step = 64; step > 0; step >>= 1) {
#pragma omp simd
    for (size_t i = 0; i < x.size(); ++i) codes[i] += x[i] > map.data()[codes[i]] ? step : -step;
  }
#pragma omp simd
  for (size_t i = 0; i < x.size(); ++i) {
    const int32_t code = codes[i];
    const bool above = x[i] > map.data()[code];
    const int32_t other = above ? code + 1 : std::max(code - 1, 0);
    const float middle = (map.data()[code] + map.data()[other]) * 0.5F;
    codes[i] = (above ? x[i] > middle : x[i] < middle) ? other : code;
  }
}

/// Updates the elements of one chunk; decays those in [decay_begin, decay_end).
void update_chunk(const Adamw8bitFactors& f, const Adamw8bitTensors& t, int64_t chunk) {
  const int64_t at = chunk * chunk_elements;
  float* p = t.master.as<float>() + at;
  const float* g = t.gradient.as<float>() + at;
  uint8_t *m_codes = t.m.as<uint8_t>() + at, *v_codes = t.v.as<uint8_t>() + at;
  float &m_scale = t.m_scale.as<float>()[chunk], &v_scale = t.v_scale.as<float>()[chunk];
  Values m{}, v{};
  float m_largest = 0, v_largest = 0;
#pragma omp simd
  for (size_t i = 0; i < m.size(); ++i) {
    m[i] = signed_dynamic_map.data()[m_codes[i]] * m_scale;
    v[i] = unsigned_dynamic_map.data()[v_codes[i]] * v_scale;
  }
  for (size_t i = 0; i < m.size(); ++i) {
    const int64_t element = at + static_cast<int64_t>(i);
    f.update(p[i], m[i], v[i], g[i], element >= t.decay_begin && element < t.decay_end);
    m_largest = std::max(m_largest, std::fabs(m[i]));
    v_largest = std::max(v_largest, v[i]);
  }
  m_scale = m_largest;
  v_scale = v_largest;
  Codes codes;
  find_codes(signed_dynamic_map, m, m_largest, codes);
  for (size_t i = 0; i < m.size(); ++i) {
    m_codes[i] = Adamw8bitFactors::with_sign_of(static_cast<uint8_t>(codes[i]), m[i]);
  }
  find_codes(unsigned_dynamic_map, v, v_largest, codes);
  for (size_t i = 0; i < v.size(); ++i) v_codes[i] = static_cast<uint8_t>(codes[i]);
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
