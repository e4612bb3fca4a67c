#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/host_device.hpp"

namespace llmtrain {

enum class DType : uint8_t { f32, bf16, f16, f64, i32, i64, u64, u32, u16, u8 };

constexpr size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
    case DType::i64:
    case DType::u64:
      return 8;
    case DType::f32:
    case DType::i32:
    case DType::u32:
      return 4;
    case DType::bf16:
    case DType::f16:
    case DType::u16:
      return 2;
    case DType::u8:
      return 1;
  }
  return 0;
}

std::string_view name_of(DType dtype);  // "fp32", "bf16", ...

/// bfloat16 storage: the upper half of an IEEE fp32. Arithmetic is done in fp32.
struct bf16 {
  uint16_t bits;

  bf16() = default;
  /// Rounds to nearest, ties to even; NaN stays NaN.
  LLMTRAIN_HOST_DEVICE explicit bf16(float value) {
    const uint32_t u = std::bit_cast<uint32_t>(value);
    const uint32_t rounded = (u + 0x7FFFu + ((u >> 16) & 1u)) >> 16;
    const bool nan = (u & 0x7FFFFFFFu) > 0x7F800000u;
    bits = static_cast<uint16_t>(nan ? (u >> 16) | 0x40u : rounded);
  }
  LLMTRAIN_HOST_DEVICE explicit operator float() const {
    return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  }
};
static_assert(sizeof(bf16) == 2);

/// IEEE binary16 storage: 5 bits of exponent, 10 of mantissa, subnormal numbers, infinities from 65520 on. Arithmetic
/// is done in fp32. Conversions have no branches, so that loops over them vectorise.
struct f16 {
  uint16_t bits;

  f16() = default;
  /// Rounds to nearest, ties to even; NaN stays NaN.
  LLMTRAIN_HOST_DEVICE explicit f16(float value) {
#if defined(__CUDA_ARCH__)
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
#else
    const uint32_t u = std::bit_cast<uint32_t>(value), magnitude = u & 0x7FFFFFFFu;
    // Below 2^-14 the result is a multiple of 2^-24, which is the unit in the last place of the sum with 1/2.
    const uint32_t small = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3F000000u;
    const uint32_t normal = (magnitude - 0x38000000u + 0xFFFu + (magnitude >> 13 & 1u)) >> 13;
    const uint32_t payload = magnitude >> 13 & 0x3FFu;
    const uint32_t nan = payload == 0 ? 0x7E00u : 0x7C00u | payload;
    const uint32_t large = magnitude > 0x7F800000u ? nan : 0x7C00u;
    const uint32_t rounded = magnitude < 0x38800000u ? small : magnitude < 0x47800000u ? normal : large;
    bits = static_cast<uint16_t>((u >> 16 & 0x8000u) | rounded);
#endif
  }
  LLMTRAIN_HOST_DEVICE explicit operator float() const {
#if defined(__CUDA_ARCH__)
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
#else
    const uint32_t magnitude = static_cast<uint32_t>(bits & 0x7FFFu) << 13;
    const float scaled = std::bit_cast<float>(magnitude) * 0x1p112f;  // exact, also for subnormal numbers
    const uint32_t special = magnitude >= 0x0F800000u ? 0x7F800000u : 0u;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(scaled) | special |
                                static_cast<uint32_t>(bits & 0x8000u) << 16);
#endif
  }
};
static_assert(sizeof(f16) == 2);

/// True if weights and activations can have this type.
constexpr bool is_compute_type(DType dtype) {
  return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16;
}

/// Rounds `value` to `dtype`.
inline float rounded_to(DType dtype, float value) {
  if (dtype == DType::bf16) return static_cast<float>(bf16(value));
  return dtype == DType::f16 ? static_cast<float>(f16(value)) : value;
}

/// Converts fp32 values to a compute type, as rounded_to() does, and back; on the host, without threads.
void round_to(DType dtype, const float* values, int64_t count, void* out);
void widen(DType dtype, const void* values, int64_t count, float* out);

/// DType of the element type T; a type without one does not compile.
template <class T>
inline constexpr DType dtype_of = T::is_no_element_type;
template <>
inline constexpr DType dtype_of<uint8_t> = DType::u8;
template <>
inline constexpr DType dtype_of<float> = DType::f32;
template <>
inline constexpr DType dtype_of<bf16> = DType::bf16;
template <>
inline constexpr DType dtype_of<f16> = DType::f16;
template <>
inline constexpr DType dtype_of<double> = DType::f64;
template <>
inline constexpr DType dtype_of<int32_t> = DType::i32;
template <>
inline constexpr DType dtype_of<int64_t> = DType::i64;
template <>
inline constexpr DType dtype_of<uint64_t> = DType::u64;
template <>
inline constexpr DType dtype_of<uint32_t> = DType::u32;
template <>
inline constexpr DType dtype_of<uint16_t> = DType::u16;

}  // namespace llmtrain
