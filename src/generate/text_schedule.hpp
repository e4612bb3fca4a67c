#pragma once
// The texts of a run of a Generator, their places in the cache, and their next passes.

#include <span>
#include <vector>

#include "generate/generated_text.hpp"
#include "generate/generator_capacity.hpp"

namespace llmtrain {

class TextSchedule {
 public:
  /// `request` outlives it.
  TextSchedule(const GeneratorCapacity& capacity, const GenerationRequest& request);

  /// Texts from the first one that has not ended.
  std::span<GeneratedText> open() { return std::span(texts_).subspan(ended_); }
  /// Plans the next passes; none are left if they are empty. Throws UserError for a prompt that is too long.
  GenerationPasses next();
  /// Continuations of all prompts. Called once, at the end.
  std::vector<Continuation> take_results();

 private:
  GenerationPasses plan_passes(std::span<GeneratedText> texts) const;
  GenerationPasses plan_whole_texts(std::span<GeneratedText> texts) const;
  bool admit(std::span<GeneratedText> texts, size_t index, std::vector<int64_t>& free) const;
  int64_t window_of(const GeneratedText& text) const;

  GeneratorCapacity capacity_;
  const GenerationRequest& request_;
  std::vector<GeneratedText> texts_;
  size_t ended_ = 0;  ///< texts at the begin that have ended
};

}  // namespace llmtrain
