#include "core/dtype.hpp"

#include <cstring>

namespace llmtrain {

namespace {

template <class T>
void round_all(const float* values, int64_t count, T* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = T(values[i]);
}

template <class T>
void widen_all(const T* values, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = static_cast<float>(values[i]);
}

}  // namespace

void round_to(DType dtype, const float* values, int64_t count, void* out) {
  if (dtype == DType::bf16) return round_all(values, count, static_cast<bf16*>(out));
  if (dtype == DType::f16) return round_all(values, count, static_cast<f16*>(out));
  std::memcpy(out, values, static_cast<size_t>(count) * sizeof(float));
}

void widen(DType dtype, const void* values, int64_t count, float* out) {
  if (dtype == DType::bf16) return widen_all(static_cast<const bf16*>(values), count, out);
  if (dtype == DType::f16) return widen_all(static_cast<const f16*>(values), count, out);
  std::memcpy(out, values, static_cast<size_t>(count) * sizeof(float));
}

std::string_view name_of(DType dtype) {
  constexpr std::string_view names[] = {"fp32",  "bf16",   "fp16",   "fp64",   "int32",
                                        "int64", "uint64", "uint32", "uint16", "uint8"};
  return names[static_cast<size_t>(dtype)];
}

}  // namespace llmtrain
