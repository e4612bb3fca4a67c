#include "generate/generation_cache.hpp"

#include <array>

namespace llmtrain {

void GenerationCache::plan(Arena& arena, const Model& model, DType compute, int64_t kv_heads) {
  // One place more than the keys that are kept, for the next one.
  const int64_t places = selects() ? std::min(context_, policy_.budget(context_).keys + 1) : context_;
  model.plan_cache(arena, keys_, compute, sequences_, places);
  if (!selects()) return;
  const int64_t sinks = policy_.kind == CachePolicy::Kind::window ? policy_.sinks : -1;
  selection_.plan(arena, std::ssize(keys_.layers), sequences_, kv_heads / keys_.blocks, places, sinks);
}

void GenerationCache::copy(int64_t to, int64_t from, int64_t tokens, Stream& stream) const {
  keys_.copy(to, from, std::min(tokens, keys_.layers.front().dim(1)), stream);
  if (selects()) selection_.copy(to, from, stream);
}

void GenerationCache::set_budgets(std::span<const TextPortion> portions, Stream& stream) const {
  for (const TextPortion& portion : portions) {
    const auto [keys, last] = policy_.budget(static_cast<int64_t>(portion.text->prompt_length));
    const std::array<int32_t, 2> budget = {static_cast<int32_t>(std::min(keys, context_)),
                                           static_cast<int32_t>(std::min(last, context_))};
    copy_to_device(selection_.budgets.rows(portion.text->slot, 1).data, budget.data(), sizeof(budget), stream);
  }
}

}  // namespace llmtrain
