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

/// Of the element types listed below; any other does not compile.
template <class T>
inline constexpr DType dtype_of = T::is_no_element_type;
template <>
inline constexpr DType dtype_of<uint8_t> = DType::u8;
template <>
inline constexpr DType dtype_of<float> = DType::f32;
template <>
inline constexpr DType dtype_of<bf16> = DType::bf16;
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
