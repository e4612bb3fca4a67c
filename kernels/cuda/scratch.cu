#include <algorithm>
#include <vector>

#include "kernels/cuda/launch.cuh"

namespace llmtrain::cuda {

void* scratch(int64_t bytes) {
  // Buffers are never freed: graphs keep using the one they were recorded with, and at exit the driver may be unloaded
  // first.
  static auto* buffers = new std::vector<DeviceBuffer>(1);
  const int64_t last = buffers->back().bytes();
  if (last < bytes) buffers->emplace_back(std::max(bytes, 2 * last));
  return buffers->back().data();
}

}  // namespace llmtrain::cuda
