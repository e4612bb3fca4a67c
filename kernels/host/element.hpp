#pragma once
// Loads and stores of fp32 and bf16 elements as fp32, and the choice of a typed loop by dtype.

#include <cstdint>
#include <utility>

#include "core/tensor.hpp"

namespace llmtrain::host {

inline float load(const float* p) { return *p; }
inline float load(const bf16* p) { return static_cast<float>(*p); }
inline void store(float* p, float value) { *p = value; }
inline void store(bf16* p, float value) { *p = bf16(value); }

/// Calls f with a null pointer of the element type: dispatch(t.dtype, [&](auto* tag) { ... }).
template <class F>
void dispatch(DType dtype, const F& f) {
  if (dtype == DType::f32) {
    f(static_cast<float*>(nullptr));
  } else {
    LLMTRAIN_CHECK(dtype == DType::bf16, "this kernel works on fp32 and bf16");
    f(static_cast<bf16*>(nullptr));
  }
}

/// f(pointer of a's element type, pointer of b's element type).
template <class F>
void dispatch(const Tensor& a, const Tensor& b, const F& f) {
  dispatch(a.dtype, [&](auto* ta) {
    dispatch(b.dtype, [&](auto* tb) { f(static_cast<decltype(ta)>(a.data), static_cast<decltype(tb)>(b.data)); });
  });
}

}  // namespace llmtrain::host
