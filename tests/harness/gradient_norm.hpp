#pragma once
#include <cmath>

#include "harness/harness.hpp"
#include "optim/optimizer.hpp"

namespace llmtrain::test {

/// L2 norm of all gradient sums. Collective.
inline double gradient_norm(const ParamStore& params, Communicator& ranks = communicator()) {
  ExactSum squares;
  const DeviceBuffer integers(static_cast<int64_t>(squares.limbs().size_bytes()));
  sum_gradient_squares({integers.data(), DType::i64, {ExactSum::integer_count}}, params, stream());
  copy_to_host(squares.limbs().data(), integers.data(), integers.bytes(), stream());
  stream().synchronize();
  ranks.sum(squares);
  return std::sqrt(squares.value());
}

}  // namespace llmtrain::test
