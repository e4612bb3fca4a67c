#pragma once
// The keys and values of a Generator's texts, of which a policy may keep some only.

#include <cstdint>
#include <span>

#include "core/arena.hpp"
#include "generate/cache_policy.hpp"
#include "generate/generated_text.hpp"
#include "layers/kv_selection.hpp"
#include "models/model.hpp"

namespace llmtrain {

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
