#include "kernels/host/norm/norm_rows.hpp"

namespace llmtrain::host {

void norm_rows_avx512(const NormForwardRows& rows) { NormRows<Float16>::forward(rows); }

}  // namespace llmtrain::host
