#pragma once
// The texts of a Generator while they grow; only its sources include this.

#include <memory>
#include <vector>

#include "generate/beam_search.hpp"
#include "generate/generation_request.hpp"

namespace llmtrain {

/// One continuation, or one beam of a prompt, and its prompt.
struct GeneratedText {
  size_t prompt = 0;
  size_t sample = 0;              ///< or number of the beam
  std::vector<int32_t> ids = {};  ///< once it has a place
  size_t prompt_length = 0;
  int64_t slot = -1;    ///< place in the cache; -1: it waits for one
  int64_t cached = 0;   ///< tokens whose keys and values the cache has
  bool running = true;  ///< false: it has ended, is a beam that is not in use, or another rank's
  /// Text of the same prompt whose pass over the prompt serves this one too; null: none.
  GeneratedText* leader = nullptr;
  std::unique_ptr<BeamSearch> search = nullptr;  ///< of the first beam of a prompt
  std::vector<GeneratedText*> beams = {};        ///< of that beam: the running beams in the order of the search
  Continuation result = {};

  int64_t made() const { return static_cast<int64_t>(ids.size() - prompt_length); }
  int64_t left() const { return static_cast<int64_t>(ids.size()) - cached; }
  Continuation take_result() {
    ids.erase(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(prompt_length));
    result.tokens = std::move(ids);
    return std::move(result);
  }
};

/// A text and the number of its tokens in a pass.
struct TextPortion {
  GeneratedText* text;
  int64_t tokens;
};

/// The next passes.
struct GenerationPasses {
  std::vector<TextPortion> chunks;   ///< tokens of prompts after those in the cache
  std::vector<TextPortion> prefill;  ///< first tokens, or all of them
  std::vector<TextPortion> decode;   ///< one token, which gives the next one
};

/// A text that gets a token from a row of logits.
struct Draw {
  GeneratedText* text;
  size_t row;
};

}  // namespace llmtrain
