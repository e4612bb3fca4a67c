#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "generate/cache_policy.hpp"

namespace llmtrain {

class DeckKeys;
class DeckLoader;

/// [rollout]: how completions of prompts are sampled.
struct RolloutConfig {
  int64_t max_new_tokens = 53;
  double temperature = 0.7;
  int64_t top_k = 0;  ///< 0 = off
  double top_p = 1;   ///< 1 = off
  CachePolicy cache;  ///< of keys and values; if it leaves keys out, rollout/mismatch says how much it matters
  std::vector<std::string> stop;  ///< texts that end a completion, beside EOS and the stop tokens of the chat

  void visit(DeckKeys& keys);
  void resolve(DeckLoader& deck, int64_t sequence_length) const;  ///< checks only
};

}  // namespace llmtrain
