#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "core/deck/named_enum.hpp"
#include "generate/beam_search.hpp"
#include "generate/cache_policy.hpp"
#include "generate/sampler.hpp"

namespace llmtrain {

class DeckKeys;
class DeckLoader;

/// [generate]: which prompts are continued, and how.
struct GenerateConfig {
  enum class Overflow : uint8_t { truncate_left, error };

  std::vector<std::string> prompts;  ///< files or globs
  std::string output;                ///< empty: generations.jsonl in the run directory
  int64_t max_new_tokens = 256;
  Overflow overflow = Overflow::truncate_left;  ///< treatment of prompts without room for max_new_tokens after them
  SamplingOptions sampling;
  BeamOptions beams;
  CachePolicy cache;
  int64_t samples = 1;               ///< continuations of a prompt
  std::vector<std::string> stop;     ///< texts and special tokens that end a continuation, beside EOS
  std::vector<int64_t> stop_tokens;  ///< ids of further ones
  bool ids = false;
  bool logprobs = false;

  void visit(DeckKeys& keys);
  std::string path(const std::string& run) const { return output.empty() ? run + "/generations.jsonl" : output; }
  /// `sequences`: texts that a rank continues side by side.
  void resolve(DeckLoader& deck, int64_t sequence_length, int64_t sequences);

 private:
  void resolve_beams(DeckLoader& deck, int64_t sequences);
};

template <>
inline constexpr auto enum_names<GenerateConfig::Overflow> = name_list("truncate_left", "error");

}  // namespace llmtrain
