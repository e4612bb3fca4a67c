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
  switch (dtype) {
    case DType::f32:
      return "fp32";
    case DType::bf16:
      return "bf16";
    case DType::f16:
      return "fp16";
    case DType::f64:
      return "fp64";
    case DType::i32:
      return "int32";
    case DType::i64:
      return "int64";
    case DType::u64:
      return "uint64";
    case DType::u32:
      return "uint32";
    case DType::u16:
      return "uint16";
    case DType::u8:
      return "uint8";
  }
  return "?";
}

}  // namespace llmtrain
