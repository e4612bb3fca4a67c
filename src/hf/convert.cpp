#include "hf/convert.hpp"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <cstring>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "core/dtype.hpp"
#include "core/error.hpp"

namespace llmtrain {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors are little-endian");

template <class T>
T load(const char* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

/// IEEE binary16 -> binary32, without branches: the exponent is re-based by a product that is exact, subnormal halves
/// included; infinities and NaN keep their payload.
float half_to_float(uint16_t half) {
  const uint32_t magnitude = static_cast<uint32_t>(half & 0x7FFFu) << 13;
  const float scaled = std::bit_cast<float>(magnitude) * 0x1p112f;
  const uint32_t special = magnitude >= 0x0F800000u ? 0x7F800000u : 0u;
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(scaled) | special | sign);
}

float bf16_to_float(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

uint16_t float_to_half(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000u);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) {  // NaN: its payload, where some of it is left
    const uint32_t payload = magnitude >> 13 & 0x3FFu;
    return static_cast<uint16_t>(sign | 0x7C00u | (payload != 0 ? payload : 0x200u));
  }
  if (magnitude >= 0x477FF000u) return static_cast<uint16_t>(sign | 0x7C00u);  // rounds to 65536 or more
  if (magnitude < 0x38800000u) {                                               // below 2^-14: a multiple of 2^-24
    const float steps = std::nearbyint(std::bit_cast<float>(magnitude) * 0x1p24f);
    return static_cast<uint16_t>(sign | static_cast<uint16_t>(steps));
  }
  const uint32_t rounded = magnitude + 0xFFFu + (magnitude >> 13 & 1u);
  return static_cast<uint16_t>(sign | (rounded - 0x38000000u) >> 13);
}

}  // namespace

std::string_view dtype_name(StoredType type) {
  return type == StoredType::BF16 ? "bfloat16" : type == StoredType::F16 ? "float16" : "float32";
}

bool is_weight_type(StoredType type) {
  return type == StoredType::F32 || type == StoredType::BF16 || type == StoredType::F16;
}

void to_float(StoredType type, const void* stored, int64_t count, float* out) {
  const auto* bytes = static_cast<const char*>(stored);
  switch (type) {
    case StoredType::F32:
      std::memcpy(out, bytes, static_cast<size_t>(count) * sizeof(float));
      return;
    case StoredType::BF16:
      for (int64_t i = 0; i < count; ++i) out[i] = bf16_to_float(load<uint16_t>(bytes + 2 * i));
      return;
    case StoredType::F16:
      for (int64_t i = 0; i < count; ++i) out[i] = half_to_float(load<uint16_t>(bytes + 2 * i));
      return;
    default:
      throw Error(fmt::format("{} is no type of weights", name_of(type)));
  }
}

void to_float_in_memory(StoredType type, const void* stored, int64_t count, float* out) {
  int64_t done = 0;
#ifdef __SSE2__  // of every 64-bit x86
  if (type == StoredType::BF16) {
    const auto* bytes = static_cast<const char*>(stored);
    while (done < count && reinterpret_cast<uintptr_t>(out + done) % sizeof(__m128i) != 0) {
      out[done] = bf16_to_float(load<uint16_t>(bytes + 2 * done));
      ++done;
    }
    const __m128i low_halves = _mm_setzero_si128();
    for (; done + 8 <= count; done += 8) {
      const __m128i values = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes + 2 * done));
      auto* const to = reinterpret_cast<__m128i*>(out + done);
      _mm_stream_si128(to, _mm_unpacklo_epi16(low_halves, values));
      _mm_stream_si128(to + 1, _mm_unpackhi_epi16(low_halves, values));
    }
    _mm_sfence();
  }
#endif
  to_float(type, static_cast<const char*>(stored) + done * bits_of(type) / 8, count - done, out + done);
}

void from_float(StoredType type, const float* values, int64_t count, void* stored) {
  auto* bytes = static_cast<char*>(stored);
  switch (type) {
    case StoredType::F32:
      std::memcpy(bytes, values, static_cast<size_t>(count) * sizeof(float));
      return;
    case StoredType::BF16:
      for (int64_t i = 0; i < count; ++i) {
        const auto bits = std::bit_cast<uint32_t>(values[i]);
        const auto exact = static_cast<uint16_t>(bits >> 16);  // also where a NaN would be made quiet
        const uint16_t rounded = (bits & 0xFFFFu) == 0 ? exact : bf16(values[i]).bits;
        std::memcpy(bytes + 2 * i, &rounded, sizeof(rounded));
      }
      return;
    case StoredType::F16:
      for (int64_t i = 0; i < count; ++i) {
        const uint16_t rounded = float_to_half(values[i]);
        if ((rounded & 0x7FFFu) == 0x7C00u && std::isfinite(values[i])) {
          throw UserError(ExitCode::bad_content,
                          fmt::format("element {}: {} does not fit fp16: write fp32 or bf16", i, values[i]));
        }
        std::memcpy(bytes + 2 * i, &rounded, sizeof(rounded));
      }
      return;
    default:
      throw Error(fmt::format("{} is no type of weights", name_of(type)));
  }
}

}  // namespace llmtrain
