#pragma once
#include <cstdint>
#include <string_view>

namespace llmtrain {

/// Codes of a quantised matrix: 4 bits (two in a byte, the first element in the high half) or signed bytes.
enum class QuantizedType : uint8_t { nf4, fp4, int8 };

constexpr std::string_view name_of(QuantizedType type) {
  switch (type) {
    case QuantizedType::nf4:
      return "nf4";
    case QuantizedType::fp4:
      return "fp4";
    case QuantizedType::int8:
      return "int8";
  }
  return "";
}

/// Storage of a frozen matrix in fewer bits. nf4 and fp4 have one scale a block of `block_size` consecutive elements of
/// a Hugging Face tensor, int8 has one scale a row.
struct Quantization {
  QuantizedType type = QuantizedType::nf4;
  int64_t block_size = 64;          // nf4 and fp4: 32, 64, 128 or 256
  bool double_quantization = true;  // nf4 and fp4: scales are bytes, quantised in blocks of 256
  double outlier_threshold = 6;     // int8: columns whose activations reach it are multiplied in 16 bits
  bool operator==(const Quantization&) const = default;
};

}  // namespace llmtrain
