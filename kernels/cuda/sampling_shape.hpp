#pragma once
// Memory of the kernel that draws tokens: plain arithmetic, tested on the host.

#include <algorithm>
#include <cstdint>

namespace llmtrain::cuda {

inline constexpr int64_t sampling_threads = 512;  ///< of a text
inline constexpr int64_t sampling_tile = 1024;    ///< tokens whose weights a warp adds
inline constexpr int sampling_buckets = 16;       ///< values of a digit of the order of logits; one for each warp

constexpr int64_t sampling_tiles(int64_t vocabulary) { return (vocabulary + sampling_tile - 1) / sampling_tile; }

/// Bytes of dynamic shared memory: sums of tiles, before them those of each thread by bucket where there are filters.
constexpr int64_t sampling_shared_bytes(int64_t vocabulary, bool filtered) {
  const int64_t sums = std::max(sampling_tiles(vocabulary), filtered ? sampling_buckets * sampling_threads : 0);
  return sums * static_cast<int64_t>(sizeof(double));
}

}  // namespace llmtrain::cuda
