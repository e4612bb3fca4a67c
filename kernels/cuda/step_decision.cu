#include "kernels/cuda/launch.cuh"
#include "kernels/step_decision.hpp"

namespace llmtrain {

namespace {

struct Carry {
  int64_t* sums;
  __device__ void operator()(int64_t i) const { carry_exact(sums + i * ExactSum::integer_count); }
};

struct Decide {
  int64_t *loss, *squares;
  StepDecision* decision;
  double divisor, maximum;
  __device__ void operator()(int64_t /*one*/) const { *decision = decision_of(loss, squares, divisor, maximum); }
};

}  // namespace

void carry_sums(const Tensor& sums, Stream& stream) {
  cuda::for_each(sums.numel() / ExactSum::integer_count, stream, Carry{sums.as<int64_t>()});
}

void decide_step(const Tensor& decision, const Tensor& sums, double divisor, double maximum, Stream& stream) {
  LLMTRAIN_CHECK(!decision.empty(), "the decision needs a tensor");
  LLMTRAIN_CHECK(sums.dtype == DType::i64 && sums.numel() >= 2 * ExactSum::integer_count,
                 "the sums of a step have at least two rows");
  auto* first = sums.as<int64_t>();
  int64_t* last = first + sums.numel() - ExactSum::integer_count;
  cuda::for_each(1, stream, Decide{first, last, decision_in(decision), divisor, maximum});
}

}  // namespace llmtrain
