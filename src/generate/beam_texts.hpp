#pragma once
// The texts of beam searches: each running beam is a text with a place in the cache.

#include <cstdint>
#include <span>

#include "generate/generated_text.hpp"
#include "generate/generation_cache.hpp"

namespace llmtrain {

/// Logits in host memory, rows `stride` apart.
struct RowsOfLogits {
  float* values;
  size_t stride, vocabulary;
  std::span<const float> row(size_t number) const { return {values + number * stride, vocabulary}; }
};

/// Takes the next step of the searches of these draws, in which the beams of each prompt follow one another. Beams get
/// the keys of their parents; a search that is done gives its results.
void advance_beams(const RowsOfLogits& logits, std::span<const Draw> draws, const GenerationRequest& request,
                   const GenerationCache& cache, Stream& stream);

}  // namespace llmtrain
