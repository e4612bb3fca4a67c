#include "generate/cache_policy.hpp"

#include <fmt/format.h>

#include <initializer_list>

#include "core/deck/deck.hpp"

namespace llmtrain {

void visit_cache(DeckKeys& keys, CachePolicy& policy) {
  keys.key("cache", policy.kind,
           {.doc = "Keys and values of a text that are kept. full: all; h2o: those with the most attention so far and "
                   "the last ones, of each layer and head of keys; window: the first and the last ones. Memory "
                   "is then constant, and texts differ from those of a full cache."});
  keys.key("h2o_heavy", policy.heavy,
           {.unit = "tokens",
            .range = between(0, 1 << 24),
            .doc = "Number of keys kept for the largest sums of attention probabilities; below 1: a fraction of the "
                   "prompt's tokens."});
  keys.key(
      "h2o_recent", policy.recent,
      {.unit = "tokens",
       .range = above(0),
       .doc = "Number of last keys that are kept as well, at least one; below 1: a fraction of the prompt's tokens."});
  keys.key("window", policy.window,
           {.unit = "tokens", .range = between(1, 1 << 24), .doc = "Number of last keys that cache = window keeps."});
  keys.key("sinks", policy.sinks,
           {.unit = "tokens", .range = between(0, 1 << 24), .doc = "Number of first keys that cache = window keeps."});
}

void check_cache(DeckLoader& deck, const CachePolicy& policy, const std::string& section) {
  const auto serves = [&](CachePolicy::Kind kind, std::initializer_list<const char*> names) {
    if (policy.kind == kind) return;
    for (const char* name : names) {
      deck.unused(section + "." + name, fmt::format("no effect without cache = {}", name_of(kind)));
    }
  };
  serves(CachePolicy::Kind::h2o, {"h2o_heavy", "h2o_recent"});
  serves(CachePolicy::Kind::window, {"window", "sinks"});
}

void check_windows(DeckLoader& deck, const ModelConfig& model, const CachePolicy& cache, const char* key) {
  bool windows = false;
  for (int64_t layer = 0; layer < model.n_layers; ++layer) windows |= model.window_of_layer(layer) > 0;
  deck.check(cache.kind == CachePolicy::Kind::full || !windows, {key},
             "the model's own sliding window leaves keys out already: choose full");
}

}  // namespace llmtrain
