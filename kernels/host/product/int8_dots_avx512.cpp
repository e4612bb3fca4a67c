#include "kernels/host/product/int8_dots.hpp"

namespace llmtrain::host {

void add_int8_dots_avx512(const Int8Dots& d, int64_t rows) {
  rows == 4 ? Int8DotsOf<Float16, 4>::run(d) : Int8DotsOf<Float16, 1>::run(d);
}

}  // namespace llmtrain::host
