#pragma once
// Marks small functions that kernels of both devices share.
#if defined(__CUDACC__)
#define LLMTRAIN_HOST_DEVICE __host__ __device__
#else
#define LLMTRAIN_HOST_DEVICE
#endif
