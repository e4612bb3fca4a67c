#pragma once
// Asynchronous copies from global to shared memory (PTX ISA, "cp.async").

#include <array>
#include <cstring>
#include <vector>

#include "kernels/cuda/launch.cuh"

namespace llmtrain::cuda {

#if defined(__CUDACC__)

/// Copies 4 or 16 bytes with that alignment, or writes zeros if `wanted` is false.
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
/// Waits for this thread's copies; a following __syncthreads() extends this to all threads.
__device__ inline void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

#else

/// The emulator delays copies as long as possible and fills the destination with NaNs meanwhile, so that a missing
/// wait, or a late read of the old contents, gives wrong numbers.
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
