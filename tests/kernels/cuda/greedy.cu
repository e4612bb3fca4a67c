// Kernels that need too much: resources_test.cpp must detect them.

constexpr int many = 96;

/// Needs more registers than a block of 1024 threads can have, so that the compiler spills.
__global__ void __launch_bounds__(1024) spilling_kernel(float* x, int n) {
  float values[many];
#pragma unroll
  for (int i = 0; i < many; ++i) values[i] = x[i * n];
  for (int round = 0; round < n; ++round) {
#pragma unroll
    for (int i = 0; i < many; ++i) values[i] = values[i] * values[(i + 7) % many] + values[(i + 31) % many];
  }
#pragma unroll
  for (int i = 0; i < many; ++i) x[i * n] = values[i];
}

/// Without launch bounds, the caller may start too many threads.
__global__ void unbounded_kernel(float* x) { x[threadIdx.x] = 1; }

/// All the shared memory that can be static.
__global__ void __launch_bounds__(32) sharing_kernel(float* x) {
  __shared__ float all[12288];
  for (int i = threadIdx.x; i < 12288; i += 32) all[i] = x[i];
  __syncwarp();
  x[threadIdx.x] = all[x[0] > 0 ? 12287 - threadIdx.x : threadIdx.x * 3];
}
