#pragma once
#include <cstdint>
#include <vector>

#include "scores/ngrams.hpp"

namespace llmtrain {

/// Returns the length of the longest common subsequence.
int64_t common_subsequence_length(const NgramIds& reference, const NgramIds& candidate);
/// Returns the positions in the reference of one longest common subsequence: of several the one that rouge-score finds.
/// Takes a bit for each pair of tokens; UserError(bad_content) beyond 1 GiB.
std::vector<size_t> common_subsequence(const NgramIds& reference, const NgramIds& candidate);

}  // namespace llmtrain
