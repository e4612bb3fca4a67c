#pragma once
// An order of samples in which steps have samples of about equal length.

#include <cstdint>
#include <functional>
#include <vector>

namespace llmtrain {

/// Sorts runs of `order` by length, the longest sample first and equal ones in their order; then swaps the longest
/// sample of all with the first one, so that a lack of memory shows at once. A run has 50 steps, or fewer so that there
/// are at least four runs. The same as Transformers' LengthGroupedSampler.
void group_by_length(std::vector<int64_t>& order, int64_t samples_per_step,
                     const std::function<int64_t(int64_t sample)>& length);

}  // namespace llmtrain
