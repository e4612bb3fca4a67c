#pragma once
#include "generate/sampler.hpp"
#include "kernels/sampling.hpp"

namespace llmtrain {

/// The filters that kernels apply; penalties change the logits before.
inline TokenFilters filters_of(const SamplingOptions& options) {
  return {options.temperature, options.top_k, options.top_p, options.min_p};
}

}  // namespace llmtrain
