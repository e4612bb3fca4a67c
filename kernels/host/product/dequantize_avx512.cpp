#include "kernels/host/product/dequantize.hpp"

namespace llmtrain::host {

void dequantize_avx512(const DequantizedRun& run) { Dequantizer<Float16>::run(run); }

}  // namespace llmtrain::host
