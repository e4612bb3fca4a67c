#pragma once
// Counter-based random numbers: Philox4x32-10 (Salmon et al., SC 2011). A number is a pure function of its key and
// index, never of the caller or the order of calls.

#include <array>
#include <cstdint>
#include <string_view>

#include "core/host_device.hpp"

namespace llmtrain {

struct Philox4 {
  uint32_t v[4];
};

LLMTRAIN_HOST_DEVICE inline Philox4 philox4x32(uint64_t key, uint64_t counter_high, uint64_t counter_low) {
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  uint32_t c0 = static_cast<uint32_t>(counter_low), c1 = static_cast<uint32_t>(counter_low >> 32);
  uint32_t c2 = static_cast<uint32_t>(counter_high), c3 = static_cast<uint32_t>(counter_high >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c0;
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * c2;
    const uint32_t n0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    const uint32_t n2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(p1);
    c3 = static_cast<uint32_t>(p0);
    c0 = n0;
    c2 = n2;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

/// Purpose of a stream of random numbers; part of every key, so that streams are disjoint.
enum class RandomPurpose : uint32_t {
  initialization = 1,
  embedding_dropout,
  attention_dropout,
  residual_dropout,
  sample_order,
  sampling,
  source_mixing,
  adapter_dropout,
  rollout_order,
};

/// Key of one stream: a hash of (seed, purpose, a, b), e.g. a = step, b = layer.
LLMTRAIN_HOST_DEVICE inline uint64_t random_key(uint64_t seed, RandomPurpose purpose, uint64_t a = 0, uint64_t b = 0) {
  const Philox4 r = philox4x32(seed, a, (b << 32) | static_cast<uint32_t>(purpose));
  return (uint64_t{r.v[1]} << 32) | r.v[0];
}

/// 64-bit FNV-1a of a name, for keys of random numbers that do not depend on an order.
constexpr uint64_t hash_of_name(std::string_view name) {
  uint64_t hash = 14695981039346656037u;
  for (const char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 1099511628211u;
  return hash;
}

/// Number `element` of sequence `sequence` under `key`, as 32 uniform bits. Four consecutive elements share one
/// evaluation.
LLMTRAIN_HOST_DEVICE inline uint32_t random_bits(uint64_t key, uint64_t sequence, uint64_t element) {
  return philox4x32(key, sequence, element >> 2).v[element & 3];
}

/// Uniform number in (0, 1), end points excluded.
LLMTRAIN_HOST_DEVICE inline double random_uniform(uint32_t bits) { return (bits + 0.5) * (1.0 / 4294967296.0); }
/// Uniform number in (-bound, bound). 2 u - 1 is exact, so that only the product is rounded.
LLMTRAIN_HOST_DEVICE inline float random_between(double bound, uint32_t bits) {
  return static_cast<float>((2 * random_uniform(bits) - 1) * bound);
}

}  // namespace llmtrain
