#pragma once
// CUDA's language for kernels, in a C++ compiler. The threads of a block are fibers of one host thread; each runs until
// it waits for others, in an exchange of its warp or at a barrier of its block. Threads that wait for each other at
// different positions, and barriers that some threads of the block never reach, which are undefined or hang on a GPU,
// end the program with a message. Static shared memory: see shared_memory.cuh.

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>

#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
// not __shared__: it would be shared by the blocks of a host thread
#define __launch_bounds__(...)

namespace llmtrain::emulator {

struct Index {
  constexpr Index(unsigned of_x = 1, unsigned of_y = 1, unsigned of_z = 1) : x(of_x), y(of_y), z(of_z) {}
  unsigned x, y, z;
};

}  // namespace llmtrain::emulator

/// Indices of the running fiber.
extern constinit thread_local llmtrain::emulator::Index threadIdx, blockIdx, blockDim, gridDim;

namespace llmtrain::emulator {

inline constexpr int warp_size = 32;
inline constexpr size_t exchanged_bytes = 64;

/// Exchanges bytes by lane, after all active lanes of the warp have arrived. Valid until the lane's next exchange.
using Exchanged = std::array<std::array<std::byte, exchanged_bytes>, warp_size>;
const Exchanged& exchange(const void* mine, size_t bytes);
/// Source position of a barrier. All threads of the block must reach the same one.
struct Barrier {
  const char* file;
  int line;
};
void wait_for_block(const Barrier& barrier);
/// Shared memory of the running block.
void* dynamic_shared_memory();

struct Launch {
  Index grid, block;
  size_t shared_bytes = 0;
};
/// Calls thread() for every thread of the grid, blocks and their threads in the order of order_of().
void run(const Launch& launch, const std::function<void()>& thread);

template <class T>
T exchanged(T mine, int lane) {
  static_assert(sizeof(T) <= exchanged_bytes);
  T result;
  std::memcpy(&result, exchange(&mine, sizeof mine)[static_cast<size_t>(lane)].data(), sizeof result);
  return result;
}
inline int own_lane() { return static_cast<int>(threadIdx.x % warp_size); }

}  // namespace llmtrain::emulator

inline void __syncthreads(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  ::llmtrain::emulator::wait_for_block({file, line});
}
inline void __syncwarp(unsigned = 0xFFFFFFFFu) { ::llmtrain::emulator::exchanged(0, 0); }
template <class T>
T __shfl_sync(unsigned, T value, int lane) {
  return ::llmtrain::emulator::exchanged(value, lane);
}
template <class T>
T __shfl_xor_sync(unsigned, T value, int distance) {
  return ::llmtrain::emulator::exchanged(value, ::llmtrain::emulator::own_lane() ^ distance);
}
template <class T>
T __shfl_down_sync(unsigned, T value, int distance) {
  const int lane = ::llmtrain::emulator::own_lane() + distance;
  return ::llmtrain::emulator::exchanged(
      value, lane < ::llmtrain::emulator::warp_size ? lane : ::llmtrain::emulator::own_lane());
}

struct alignas(16) uint4 {
  unsigned x = 0, y = 0, z = 0, w = 0;
};
using std::memcpy;
