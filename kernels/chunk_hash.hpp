#pragma once
// Arithmetic of chunked_hash, shared by both devices.

#include <cstdint>

#include "core/host_device.hpp"

namespace llmtrain {

/// A bijection of 64 bits in which every input bit flips about half of the output bits (Steele, Lea & Flood 2014).
LLMTRAIN_HOST_DEVICE constexpr uint64_t mix_bits(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

/// Contribution of the 64-bit word `index` to a chunk's hash (zero bytes after the end of the tensor); contributions
/// are added.
LLMTRAIN_HOST_DEVICE constexpr uint64_t word_hash(uint64_t word, uint64_t index) {
  return mix_bits(word + (index + 1) * 0x9E3779B97F4A7C15u);
}

/// Contribution of the chunk `index` to the tensor's hash; contributions are added.
LLMTRAIN_HOST_DEVICE constexpr uint64_t chunk_hash(uint64_t sum_of_words, uint64_t index) {
  return mix_bits(sum_of_words ^ mix_bits(index + 1));
}

}  // namespace llmtrain
