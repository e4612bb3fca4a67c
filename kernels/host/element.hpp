#pragma once
// Loads and stores of fp32, bf16 and fp16 elements as fp32, and the selection of a typed loop by dtype.

#include <cstdint>
#include <type_traits>
#include <utility>

#include "core/tensor.hpp"

namespace llmtrain::host {

inline float load(const float* p) { return *p; }
inline float load(const bf16* p) { return static_cast<float>(*p); }
inline float load(const f16* p) { return static_cast<float>(*p); }
inline void store(float* p, float value) { *p = value; }
inline void store(bf16* p, float value) { *p = bf16(value); }
inline void store(f16* p, float value) { *p = f16(value); }

/// Calls f with a null pointer of the element type: dispatch(t.dtype, [&](auto* tag) { ... }).
template <class F>
void dispatch(DType dtype, const F& f) {
  if (dtype == DType::f32) {
    f(static_cast<float*>(nullptr));
  } else if (dtype == DType::bf16) {
    f(static_cast<bf16*>(nullptr));
  } else {
    LLMTRAIN_CHECK(dtype == DType::f16, "this kernel supports fp32, bf16 and fp16");
    f(static_cast<f16*>(nullptr));
  }
}

/// Calls f(pointer of a's element type, pointer of b's element type). One of the two types must be fp32.
template <class F>
void dispatch(const Tensor& a, const Tensor& b, const F& f) {
  dispatch(a.dtype, [&](auto* ta) {
    dispatch(b.dtype, [&](auto* tb) {
      using A = std::remove_pointer_t<decltype(ta)>;
      using B = std::remove_pointer_t<decltype(tb)>;
      if constexpr (std::is_same_v<A, B> || std::is_same_v<A, float> || std::is_same_v<B, float>) {
        f(static_cast<A*>(a.data), static_cast<B*>(b.data));
      } else {
        LLMTRAIN_CHECK(false, "bf16 and fp16 cannot be mixed");
      }
    });
  });
}

}  // namespace llmtrain::host
