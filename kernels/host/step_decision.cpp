#include "kernels/step_decision.hpp"

namespace llmtrain {

void carry_sums(const Tensor& sums, Stream& /*stream*/) {
  for (int64_t i = 0; i < sums.numel(); i += ExactSum::integer_count) carry_exact(sums.as<int64_t>() + i);
}

void decide_step(const Tensor& decision, const Tensor& sums, double divisor, double maximum, Stream& /*stream*/) {
  LLMTRAIN_CHECK(!decision.empty(), "the decision needs a tensor");
  LLMTRAIN_CHECK(sums.dtype == DType::i64 && sums.numel() >= 2 * ExactSum::integer_count,
                 "the sums of a step have at least two rows");
  auto* integers = sums.as<int64_t>();
  *decision_in(decision) = decision_of(integers, integers + sums.numel() - ExactSum::integer_count, divisor, maximum);
}

}  // namespace llmtrain
