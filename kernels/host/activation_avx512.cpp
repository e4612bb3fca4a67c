#include "kernels/host/activation_loops.hpp"

namespace llmtrain::host {

void activation_loop_avx512(Activation activation, DType dtype, bool slopes, void* y, void* h, void* up, int64_t n,
                            float limit) {
  ActivationLoops<Float16>::forward(activation, dtype, slopes, y, h, up, n, limit);
}

}  // namespace llmtrain::host
