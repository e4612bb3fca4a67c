#pragma once
#include <algorithm>
#include <cstdint>

#include "generate/cache_policy.hpp"

namespace llmtrain {

/// Capacity of a Generator.
struct GeneratorCapacity {
  int64_t vocabulary_rows = 0;  ///< rows of the embedding
  int64_t sequences = 1;        ///< number of simultaneous sequences
  int64_t context = 0;          ///< tokens of each that the model reads
  bool cache = true;  ///< True for a cache of keys and values; without it the whole text is processed for each token
  bool records_logp = false;  ///< memory for GenerationRequest::records_logp
  /// Tokens of prompts in a pass, for less memory; 0: as many as the context. Without a cache it has no effect.
  int64_t prompt_tokens = 0;
  CachePolicy policy = {};  ///< other ones than full read prompts as a whole
  int64_t kv_heads = 0;     ///< of the model, for these

  bool selects() const { return cache && policy.kind != CachePolicy::Kind::full; }
  /// Rows of a pass.
  int64_t rows() const { return std::max(prompt_tokens, sequences); }
};

}  // namespace llmtrain
