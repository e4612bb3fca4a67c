#pragma once
#include "kernels/sampling.hpp"

namespace llmtrain {

struct SamplingOptions;

/// The filters that kernels apply; penalties change the logits before.
TokenFilters filters_of(const SamplingOptions& options);

}  // namespace llmtrain
