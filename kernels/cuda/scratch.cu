#include "kernels/cuda/launch.cuh"

namespace llmtrain::cuda {

void* scratch(int64_t bytes) {
  static auto* buffer = new DeviceBuffer();  // stays: at exit the driver may be gone before it
  if (buffer->bytes() < bytes) {
    *buffer = DeviceBuffer();
    *buffer = DeviceBuffer(bytes);
  }
  return buffer->data();
}

}  // namespace llmtrain::cuda
