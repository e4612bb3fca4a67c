#pragma once
// The keys and values of a Generator's texts, of which a policy may keep some only.

#include <algorithm>
#include <cstdint>
#include <span>

#include "core/arena.hpp"
#include "generate/cache_policy.hpp"
#include "generate/generated_text.hpp"
#include "layers/kv_selection.hpp"
#include "models/model.hpp"

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
  /// Decoding may run as graphs of a GPU, if the model can be recorded.
  bool graphs = false;

  bool selects() const { return cache && policy.kind != CachePolicy::Kind::full; }
  /// Rows of a pass.
  int64_t rows() const { return std::max(prompt_tokens, sequences); }
};

class GenerationCache {
 public:
  GenerationCache(const CachePolicy& policy, int64_t context, int64_t sequences)
      : policy_(policy), context_(context), sequences_(sequences) {}

  /// True if some of the keys of a text are left out.
  bool selects() const { return policy_.kind != CachePolicy::Kind::full; }
  void plan(Arena& arena, const Model& model, DType compute, int64_t kv_heads);
  /// The cache for the passes of a run.
  KvCache& keys() {
    keys_.selection = selects() ? &selection_ : nullptr;
    return keys_;
  }
  /// Copies the first `tokens` tokens of the text in place `from` to place `to`.
  void copy(int64_t to, int64_t from, int64_t tokens, Stream& stream) const;
  /// Sets how many keys texts keep, by the lengths of their prompts.
  void set_budgets(std::span<const TextPortion> portions, Stream& stream) const;

 private:
  CachePolicy policy_;
  int64_t context_, sequences_;
  KvCache keys_;
  KvSelection selection_;
};

}  // namespace llmtrain
