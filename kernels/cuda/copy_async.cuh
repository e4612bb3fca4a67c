#pragma once
// Copies from global to shared memory that run beside the threads (PTX ISA, "cp.async").

#include <array>
#include <cstring>
#include <vector>

#include "kernels/cuda/launch.cuh"

namespace llmtrain::cuda {

#if defined(__CUDACC__)

/// 4 or 16 bytes at such an alignment; not wanted: zeros.
template <int bytes>
__device__ void copy_async(void* shared, const void* global, bool wanted = true) {
  const auto address = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  const int from = wanted ? bytes : 0;
  if constexpr (bytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(global), "r"(from) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(address), "l"(global), "r"(from) : "memory");
  }
}
/// Until those of this thread are there; __syncthreads() then says it of all.
__device__ inline void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

#else

/// As late as possible, and until then there are NaNs: a thread that does not wait, or that still reads what was there,
/// has wrong numbers.
struct CopyUnderWay {
  void* to;
  const void* from;
  size_t bytes;
  bool wanted;
};
inline std::vector<CopyUnderWay>& copies_of_thread() {
  static thread_local std::array<std::vector<CopyUnderWay>, 1024> of_block;  // a block has one host thread
  return of_block[threadIdx.x];
}

template <int bytes>
void copy_async(void* shared, const void* global, bool wanted = true) {
  LLMTRAIN_CHECK(reinterpret_cast<uintptr_t>(shared) % bytes == 0 && reinterpret_cast<uintptr_t>(global) % bytes == 0,
                 "cp.async: an address is not aligned");
  std::memset(shared, 0xFF, bytes);
  copies_of_thread().push_back({shared, global, bytes, wanted});
}
inline void wait_for_copies() {
  for (const CopyUnderWay& c : copies_of_thread()) {
    if (c.wanted) {
      std::memcpy(c.to, c.from, c.bytes);
    } else {
      std::memset(c.to, 0, c.bytes);
    }
  }
  copies_of_thread().clear();
}

#endif

}  // namespace llmtrain::cuda
