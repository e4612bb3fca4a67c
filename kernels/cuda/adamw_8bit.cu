#include "core/profile.hpp"
#include "kernels/adamw_8bit.hpp"
#include "kernels/adamw_8bit_arithmetic.hpp"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/shared_memory.cuh"
#include "kernels/step_decision.hpp"

namespace llmtrain {

namespace {

using namespace cuda;

/// A warp updates a chunk, each lane two packs of it. Levels and borders of the maps are in shared memory.
template <class W>
struct Update {
  static constexpr int threads = 256, warps = threads / warp_lanes;
  static constexpr int64_t most_blocks = 132 * 4;  ///< for an H200: all at once, so that each fills its tables once
  static constexpr int packs = 2, held = packs * Pack::size;
  static_assert(warp_lanes * held == chunk_elements);
  using Codes = RawPack<uint8_t, Pack::size>;
  int64_t chunks;
  float* p;
  uint8_t *m, *v;
  float *m_scale, *v_scale;
  const float* g;
  W* weights;
  int64_t decay_begin, decay_end;
  Adamw8bitFactors of_step;
  const StepDecision* decision;
  DynamicMap m_map, v_map;

  struct Tables {
    const float *m_levels, *v_levels, *m_borders, *v_borders;
  };

  __device__ void operator()() const {
    LLMTRAIN_SHARED(float[threads], m_levels);
    LLMTRAIN_SHARED(float[threads], v_levels);
    LLMTRAIN_SHARED(float[threads], m_borders);
    LLMTRAIN_SHARED(float[threads], v_borders);
    Adamw8bitFactors factors = of_step;
    if (decision != nullptr) {
      if (decision->applies == 0) return;
      factors.scale = static_cast<float>(decision->factor);
    }
    const int thread = static_cast<int>(threadIdx.x);
    m_levels[thread] = m_map[threadIdx.x];
    v_levels[thread] = v_map[threadIdx.x];
    __syncthreads();
    if (thread > 0) {
      m_borders[thread] = code_border(m_levels, thread);
      v_borders[thread] = code_border(v_levels, thread);
    }
    __syncthreads();
    const Tables tables{m_levels, v_levels, m_borders, v_borders};
    for (int64_t chunk = int64_t{blockIdx.x} * warps + thread / warp_lanes; chunk < chunks;
         chunk += int64_t{gridDim.x} * warps) {
      update_chunk(chunk, factors, tables);
    }
  }

  __device__ void update_chunk(int64_t chunk, const Adamw8bitFactors& factors, const Tables& tables) const {
    const float old_m = m_scale[chunk], old_v = v_scale[chunk];
    float first[held], second[held], m_largest = 0, v_largest = 0;
    LLMTRAIN_UNROLL
    for (int pack = 0; pack < packs; ++pack) {
      const int64_t at = place(chunk, pack);
      const Codes m_codes = *reinterpret_cast<const Codes*>(m + at), v_codes = *reinterpret_cast<const Codes*>(v + at);
      Pack value = load_whole<Pack::size>(p + at);
      const Pack gradient = load_whole<Pack::size>(g + at);
      LLMTRAIN_UNROLL
      for (int k = 0; k < Pack::size; ++k) {
        const int i = pack * static_cast<int>(Pack::size) + k;
        first[i] = rounded_product(tables.m_levels[m_codes.v[k]], old_m);
        second[i] = rounded_product(tables.v_levels[v_codes.v[k]], old_v);
        factors.update(value.v[k], first[i], second[i], gradient.v[k], at + k >= decay_begin && at + k < decay_end);
        m_largest = fmaxf(m_largest, fabsf(first[i]));
        v_largest = fmaxf(v_largest, second[i]);
      }
      store_whole(p + at, value);
      if (weights != nullptr) store_whole(weights + at, value);
    }
    m_largest = warp_maximum(m_largest);
    v_largest = warp_maximum(v_largest);
    LLMTRAIN_UNROLL
    for (int pack = 0; pack < packs; ++pack) {
      Codes m_codes, v_codes;
      LLMTRAIN_UNROLL
      for (int k = 0; k < Pack::size; ++k) {
        const int i = pack * static_cast<int>(Pack::size) + k;
        const uint8_t code = nearest_code_of(tables.m_borders, Adamw8bitFactors::ratio(first[i], m_largest));
        m_codes.v[k] = Adamw8bitFactors::with_sign_of(code, first[i]);
        v_codes.v[k] = nearest_code_of(tables.v_borders, Adamw8bitFactors::ratio(second[i], v_largest));
      }
      *reinterpret_cast<Codes*>(m + place(chunk, pack)) = m_codes;
      *reinterpret_cast<Codes*>(v + place(chunk, pack)) = v_codes;
    }
    if (lane() != 0) return;  // every lane has read the scales: the maxima needed all of them
    m_scale[chunk] = m_largest;
    v_scale[chunk] = v_largest;
  }
  /// First element of a lane's pack.
  __device__ static int64_t place(int64_t chunk, int pack) {
    return chunk * chunk_elements + (pack * warp_lanes + lane()) * Pack::size;
  }
};

}  // namespace

void adamw_8bit_update(const Adamw8bitTensors& t, const AdamwStep& step, Stream& stream) {
  const ProfileSpan span("adamw_8bit_update", [&] {
    return traffic({&t.master, &t.master, &t.m, &t.m, &t.v, &t.v, &t.gradient, &t.weights});
  });
  check_update(t);
  const int64_t chunks = t.master.numel() / chunk_elements;
  for (const Tensor* whole : {&t.master, &t.m, &t.v, &t.gradient, &t.weights}) {
    LLMTRAIN_CHECK(reinterpret_cast<uintptr_t>(whole->data) % (Pack::size * size_of(whole->dtype)) == 0,
                   "the tensors of an update begin at whole packs");
  }
  dispatch(t.weights, [&]<class W>(W* out) {
    using Kernel = Update<W>;
    launch({std::min(Kernel::most_blocks, blocks_for(chunks, Kernel::warps))}, stream,
           Kernel{chunks, t.master.as<float>(), t.m.as<uint8_t>(), t.v.as<uint8_t>(), t.m_scale.as<float>(),
                  t.v_scale.as<float>(), t.gradient.as<float>(), out, t.decay_begin, t.decay_end,
                  Adamw8bitFactors(step), decision_in(step.decision), signed_dynamic_map, unsigned_dynamic_map});
  });
}

}  // namespace llmtrain
