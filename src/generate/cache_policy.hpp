#pragma once
#include <algorithm>
#include <cstdint>
#include <string>

#include "core/deck/named_enum.hpp"
#include "models/model_config.hpp"

namespace llmtrain {

class DeckKeys;
class DeckLoader;

/// Choice of the keys and values of a text that the cache keeps.
struct CachePolicy {
  enum class Kind : uint8_t { full, h2o, window };

  Kind kind = Kind::full;
  // h2o, per layer and head of keys: a number of tokens from 1 on, below 1 a share of the prompt's tokens.
  double heavy = 0.1;   ///< keys with the largest sums of attention probabilities
  double recent = 0.1;  ///< the last keys
  // window:
  int64_t window = 1024;  ///< the last keys
  int64_t sinks = 4;      ///< the first keys

  /// Keys that a text keeps, and the last ones among them.
  struct Budget {
    int64_t keys, last;
  };
  Budget budget(int64_t prompt_tokens) const {
    const auto tokens = [&](double number) {
      return static_cast<int64_t>(number < 1 ? number * static_cast<double>(prompt_tokens) : number);
    };
    const int64_t last = std::max<int64_t>(1, kind == Kind::window ? window : tokens(recent));
    return {last + (kind == Kind::window ? sinks : tokens(heavy)), last};
  }
};

template <>
inline constexpr auto enum_names<CachePolicy::Kind> = name_list("full", "h2o", "window");

/// Visits the keys cache, h2o_heavy, h2o_recent, window and sinks of the section.
void visit_cache(DeckKeys& keys, CachePolicy& policy);
/// Refuses keys of another kind than the section's.
void check_cache(DeckLoader& deck, const CachePolicy& policy, const std::string& section);
/// Reports a policy other than full, at `key`, for a model whose own windows leave keys out.
void check_windows(DeckLoader& deck, const ModelConfig& model, const CachePolicy& cache, const char* key);

}  // namespace llmtrain
