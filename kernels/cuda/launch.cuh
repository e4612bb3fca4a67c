#pragma once
// Launch of kernels on the device or, in tests, in the emulator. A kernel is a struct with its arguments and
//   __device__ void operator()() const
// that uses threadIdx and blockIdx as usual.

#include <cuda_runtime.h>  // without a GPU, the header of tests/emulator

#include <algorithm>
#include <array>
#include <cstdint>
#include <mutex>
#include <string>

/// Prefix of a loop over elements of an array that must lie in registers; BY: unroll factor.
#if defined(__CUDACC__)
#define LLMTRAIN_PRAGMA(text) _Pragma(#text)
#define LLMTRAIN_UNROLL LLMTRAIN_PRAGMA(unroll)
#define LLMTRAIN_UNROLL_BY(count) LLMTRAIN_PRAGMA(unroll count)
#else
#define LLMTRAIN_UNROLL
#define LLMTRAIN_UNROLL_BY(count)
#endif

#include "core/error.hpp"
#include "core/tensor.hpp"
#include "device/device.hpp"
#include "kernels/cuda/launch_shape.hpp"

namespace llmtrain::cuda {

inline void check_launch(cudaError_t code, const char* what) {
  if (code == cudaSuccess) return;
  const std::string fault = device_fault();
  cudaGetLastError();  // keeps the next call from returning this error
  throw Error(std::string(what) + ": " + cudaGetErrorString(code) + fault);
}

template <class Kernel>
__global__ void __launch_bounds__(Kernel::threads) run(const Kernel kernel) {
  kernel();
}

/// Shared memory beyond the default limit is requested once, in a kernel's first launches on a device, which precede
/// those recorded into graphs.
template <class Kernel>
void allow_shared_memory(int bytes) {
  static std::mutex mutex;
  static std::array<int, 64> allowed{};  // by device
  int device = 0;
  check_launch(cudaGetDevice(&device), "cudaGetDevice");
  const std::lock_guard<std::mutex> lock(mutex);
  int& most = allowed.at(static_cast<size_t>(device));
  if (bytes <= most) return;
  check_launch(cudaFuncSetAttribute(run<Kernel>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
               "this GPU has too little shared memory for a kernel");
  most = bytes;
}

/// Launches Kernel::threads threads per block. Immediate errors are thrown here; later ones at the stream's
/// synchronization.
template <class Kernel>
void launch(const Grid& grid, Stream& stream, const Kernel& kernel, int shared_bytes = 0) {
  check_grid(grid);
  if (is_empty(grid)) return;
  if (shared_bytes > shared_bytes_granted) allow_shared_memory<Kernel>(shared_bytes);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y), static_cast<unsigned>(grid.z));
  config.blockDim = dim3(Kernel::threads);
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = static_cast<cudaStream_t>(stream.native());
  check_launch(cudaLaunchKernelEx(&config, run<Kernel>, kernel), "a kernel failed to start");
}

template <class T>
__device__ T* dynamic_shared() {
#if defined(__CUDACC__)
  extern __shared__ __align__(128) unsigned char bytes[];
  return reinterpret_cast<T*>(bytes);
#else
  return static_cast<T*>(emulator::dynamic_shared_memory());
#endif
}

/// Calls f(i) for i in [0, count).
template <class F>
struct ForEach {
  static constexpr int threads = 256;
  int64_t count;
  F f;
  __device__ void operator()() const {
    const int64_t stride = static_cast<int64_t>(gridDim.x) * threads;
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * threads + threadIdx.x; i < count; i += stride) f(i);
  }
};
template <class F>
void for_each(int64_t count, Stream& stream, const F& f) {
  launch(loop_grid(count, ForEach<F>::threads), stream, ForEach<F>{count, f});
}

/// Calls f(i) for i in [0, count), each by a whole warp.
template <class F, int warps_of_block>
struct ForEachWarp {
  static constexpr int warps = warps_of_block;
  static constexpr int threads = warps * warp_lanes;
  int64_t count;
  F f;
  __device__ void operator()() const {
    const int64_t stride = static_cast<int64_t>(gridDim.x) * warps;
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * warps + threadIdx.x / warp_lanes; i < count; i += stride) f(i);
  }
};
template <int warps = 8, class F>
void for_each_warp(int64_t count, Stream& stream, const F& f, int shared_bytes = 0) {
  using Kernel = ForEachWarp<F, warps>;
  launch(loop_grid(count, Kernel::warps), stream, Kernel{count, f}, shared_bytes);
}

__device__ inline int lane() { return static_cast<int>(threadIdx.x % warp_lanes); }

/// Sum over a warp, the same in all lanes, added as a tree: 16 apart, then 8, 4, 2, 1.
template <class T>
__device__ T warp_sum(T x) {
  for (int distance = warp_lanes / 2; distance > 0; distance /= 2) x += __shfl_xor_sync(0xFFFFFFFFu, x, distance);
  return x;
}
template <class T>
__device__ T warp_maximum(T x) {
  for (int distance = warp_lanes / 2; distance > 0; distance /= 2) {
    const T other = __shfl_xor_sync(0xFFFFFFFFu, x, distance);
    x = other > x ? other : x;
  }
  return x;
}

__device__ inline float load(const float* p) { return *p; }
__device__ inline float load(const bf16* p) { return static_cast<float>(*p); }
__device__ inline float load(const f16* p) { return static_cast<float>(*p); }
__device__ inline void store(float* p, float value) { *p = value; }
/// bf16's own conversion uses integers; here it is one instruction.
__device__ inline void store(bf16* p, float value) {
#if defined(__CUDACC__)
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(p->bits) : "f"(value));
#else
  *p = bf16(value);
#endif
}
__device__ inline void store(f16* p, float value) { *p = f16(value); }

/// Converts neighbours to floats.
template <int64_t count>
struct PackOf {
  static constexpr int64_t size = count;
  float v[count];
};
using Pack = PackOf<4>;
/// Elements in 16 bytes, the largest access.
template <class T>
inline constexpr int64_t wide = 16 / sizeof(T);
/// Loads in one access, if aligned. (For the host GCC 12 merges load_pack's two branches, and keeps the alignment of
/// this one.)
#if defined(__CUDACC__)
#define LLMTRAIN_ONE_ACCESS(bytes) alignas(bytes)
#else
#define LLMTRAIN_ONE_ACCESS(bytes)
#endif
template <class T, int64_t count>
inline constexpr size_t access_bytes = std::min<size_t>(sizeof(T) * count, 16);  ///< longer packs need several accesses
template <class T, int64_t count>
struct LLMTRAIN_ONE_ACCESS((access_bytes<T, count>)) RawPack {
  T v[count];
};
template <int64_t size, class T>
__device__ bool is_aligned(const T* at) {
  return reinterpret_cast<uintptr_t>(at) % access_bytes<T, size> == 0;
}
/// A whole pack that is_aligned().
template <int64_t size, class T>
__device__ PackOf<size> load_whole(const T* at) {
  const auto raw = *reinterpret_cast<const RawPack<T, size>*>(at);
  PackOf<size> pack;
  for (int k = 0; k < size; ++k) pack.v[k] = load(raw.v + k);
  return pack;
}
#if defined(__CUDACC__)
/// Two neighbours as they are stored.
template <class T>
__device__ uint32_t rounded_pair(float first, float second) {
  uint32_t pair;
  if constexpr (std::is_same_v<T, bf16>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  }
  return pair;
}
/// Stores eight neighbours at once: nvcc does not join stores of what an asm statement gives.
template <class T>
__device__ void store_whole(T* at, const PackOf<8>& pack) requires(sizeof(T) == 2) {
  const auto pair = [&](int k) { return rounded_pair<T>(pack.v[k], pack.v[k + 1]); };
  asm volatile("st.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(pair(0)), "r"(pair(2)), "r"(pair(4)), "r"(pair(6))
               : "memory");
}
template <class T>
__device__ void store_whole(T* at, const PackOf<4>& pack) requires(sizeof(T) == 2) {
  asm volatile("st.v2.b32 [%0], {%1, %2};" ::"l"(at), "r"(rounded_pair<T>(pack.v[0], pack.v[1])),
               "r"(rounded_pair<T>(pack.v[2], pack.v[3]))
               : "memory");
}
#endif
template <int64_t size, class T>
__device__ void store_whole(T* at, const PackOf<size>& pack) {
  RawPack<T, size> raw;
  for (int k = 0; k < size; ++k) store(raw.v + k, pack.v[k]);
  *reinterpret_cast<RawPack<T, size>*>(at) = raw;
}
/// Loads elements i .. i + size - 1 of a row of n, with zeros past its end. Uses accesses of up to 16 bytes where the
/// row's start and i allow it. (If n is known to suffice, compilers merge both branches: load_whole() then.)
template <int64_t size = Pack::size, class T>
__device__ PackOf<size> load_pack(const T* row, int64_t i, int64_t n) {
  if (i + size <= n && is_aligned<size>(row + i)) return load_whole<size>(row + i);
  PackOf<size> pack;
  LLMTRAIN_UNROLL
  for (int k = 0; k < size; ++k) pack.v[k] = i + k < n ? load(row + i + k) : 0.0f;
  return pack;
}
template <int64_t size, class T>
__device__ void store_pack(T* row, int64_t i, int64_t n, const PackOf<size>& pack) {
  if (i + size <= n && is_aligned<size>(row + i)) return store_whole(row + i, pack);
  LLMTRAIN_UNROLL
  for (int k = 0; k < size; ++k) {
    if (i + k < n) store(row + i + k, pack.v[k]);
  }
}

/// Calls f(i) for every fourth element i of a row of n, divided among the lanes of a warp.
template <class F>
__device__ void for_packs(int64_t n, const F& f) {
  for (int64_t i = lane() * Pack::size; i < n; i += warp_lanes * Pack::size) f(i);
}

/// Calls f(k, i) for the k-th pack of a lane, in rows of up to `held` packs per lane, so that arrays of this size lie
/// in registers.
template <int held, class F>
__device__ void for_held_packs(int64_t n, const F& f) {
  LLMTRAIN_UNROLL
  for (int k = 0; k < held; ++k) {
    const int64_t i = (k * warp_lanes + lane()) * Pack::size;
    if (i < n) f(k, i);
  }
}

/// Calls f(pointer of the tensor's element type).
template <class F>
void dispatch(const Tensor& t, const F& f) {
  if (t.dtype == DType::f32) {
    f(static_cast<float*>(t.data));
  } else if (t.dtype == DType::bf16) {
    f(static_cast<bf16*>(t.data));
  } else {
    LLMTRAIN_CHECK(t.dtype == DType::f16, "this kernel supports fp32, bf16 and fp16");
    f(static_cast<f16*>(t.data));
  }
}
/// One of the two types must be fp32.
template <class F>
void dispatch(const Tensor& a, const Tensor& b, const F& f) {
  dispatch(a, [&]<class A>(A* pa) {
    dispatch(b, [&]<class B>(B* pb) {
      if constexpr (std::is_same_v<A, B> || std::is_same_v<A, float> || std::is_same_v<B, float>) {
        f(pa, pb);
      } else {
        LLMTRAIN_CHECK(false, "bf16 and fp16 cannot be mixed");
      }
    });
  });
}

/// Scratch memory of at least `bytes` for the kernels of one call, valid until the next request. It grows only for new
/// shapes, which a graph must not record. One stream at a time.
void* scratch(int64_t bytes);

}  // namespace llmtrain::cuda
