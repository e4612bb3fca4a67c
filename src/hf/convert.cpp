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

float bf16_to_float(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

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
      for (int64_t i = 0; i < count; ++i) out[i] = static_cast<float>(load<f16>(bytes + 2 * i));
      return;
    default:
      throw Error(fmt::format("{} is not a type of weights", name_of(type)));
  }
}

void to_float_in_memory(StoredType type, const void* stored, int64_t count, float* out) {
  int64_t done = 0;
#ifdef __SSE2__  // part of every 64-bit x86
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
        const auto exact = static_cast<uint16_t>(bits >> 16);  // also if this would make a NaN quiet
        const uint16_t rounded = (bits & 0xFFFFu) == 0 ? exact : bf16(values[i]).bits;
        std::memcpy(bytes + 2 * i, &rounded, sizeof(rounded));
      }
      return;
    case StoredType::F16:
      for (int64_t i = 0; i < count; ++i) {
        const uint16_t rounded = f16(values[i]).bits;
        if ((rounded & 0x7FFFu) == 0x7C00u && std::isfinite(values[i])) {
          throw UserError(ExitCode::bad_content,
                          fmt::format("element {}: {} does not fit fp16; write fp32 or bf16", i, values[i]));
        }
        std::memcpy(bytes + 2 * i, &rounded, sizeof(rounded));
      }
      return;
    default:
      throw Error(fmt::format("{} is not a type of weights", name_of(type)));
  }
}

}  // namespace llmtrain
