#include "params/reduction/reduction_groups.hpp"

namespace llmtrain {

ReductionGroups::ReductionGroups(int64_t micro_batches_in, int64_t count_in)
    : micro_batches(micro_batches_in), count(count_in == 0 ? micro_batches_in : count_in) {}

int64_t ReductionGroups::used(int64_t present) const {
  int64_t n = 0;
  while (n < count && begin(n) < present) ++n;
  return n;
}

}  // namespace llmtrain
