#include "generate/text_schedule.hpp"

#include <algorithm>
#include <functional>

#include "core/error.hpp"

namespace llmtrain {

TextSchedule::TextSchedule(const GeneratorCapacity& capacity, const GenerationRequest& request)
    : capacity_(capacity), request_(request) {
  const int64_t beams = request.beams.beams;
  for (size_t p = 0; p < request.prompts.size(); ++p) {
    LLMTRAIN_CHECK(!request.prompts[p].empty(), "a continuation needs at least one token");
    for (int64_t s = 0; s < std::max(beams, request.samples); ++s) {
      GeneratedText& text = texts_.emplace_back();
      text.prompt = p;
      text.sample = static_cast<size_t>(s);
      text.prompt_length = request.prompts[p].size();
      text.running = request.max_new_tokens > 0 && (beams == 1 || s == 0);
    }
    if (beams == 1) continue;
    const int64_t most = std::max<int64_t>(1, capacity.context - std::ssize(request.prompts[p]));
    texts_[texts_.size() - static_cast<size_t>(beams)].search =
        std::make_unique<BeamSearch>(request.beams, request.eos, std::min(request.max_new_tokens, most));
  }
}

GenerationPasses TextSchedule::next() {
  while (ended_ < texts_.size() && !texts_[ended_].running) ++ended_;
  return capacity_.cache ? plan_passes(open()) : plan_whole_texts(open());
}

std::vector<Continuation> TextSchedule::take_results() {
  std::vector<Continuation> results;
  for (GeneratedText& text : texts_) {
    if (static_cast<int64_t>(text.sample) >= request_.samples) continue;
    if (text.ids.empty()) text.prompt_length = 0;  // it got no place before the end
    results.push_back(request_.beams.beams > 1 ? std::move(text.result) : text.take_result());
  }
  return results;
}

/// Plans passes over all tokens of texts, without a cache: those with the fewest new tokens come before others.
GenerationPasses TextSchedule::plan_whole_texts(std::span<GeneratedText> texts) const {
  std::vector<GeneratedText*> waiting;
  for (GeneratedText& text : texts) {
    if (!text.running) continue;
    if (text.ids.empty()) text.ids = request_.prompts[text.prompt];
    waiting.push_back(&text);
  }
  std::ranges::stable_sort(waiting, std::less(), [](const GeneratedText* text) { return text->made(); });
  GenerationPasses passes;
  int64_t used = 0;
  for (GeneratedText* const text : waiting) {
    const int64_t window = window_of(*text);
    if (used + window > capacity_.rows() || std::ssize(passes.prefill) == capacity_.sequences) break;
    used += window;
    text->slot = std::ssize(passes.prefill);
    passes.prefill.push_back({text, window});
  }
  return passes;
}

/// Gives a text that waits its place, and one to each further beam. Returns false if there is none.
bool TextSchedule::admit(std::span<GeneratedText> texts, size_t index, std::vector<int64_t>& free) const {
  const auto wanted = static_cast<size_t>(request_.beams.beams);
  if (free.size() < wanted) return false;
  for (size_t b = 0; b < wanted; ++b) {
    GeneratedText& text = texts[index + b];
    text.slot = free.back();
    free.pop_back();
    text.ids = request_.prompts[text.prompt];
  }
  GeneratedText& text = texts[index];
  window_of(text);  // refuses a prompt that is too long
  if (text.sample == 0 || index == 0 || request_.records_logp) return true;
  GeneratedText& before = texts[index - 1];
  GeneratedText* const leader = before.leader != nullptr ? before.leader : &before;
  if (leader->running && leader->made() == 0 && leader->slot >= 0) text.leader = leader;
  return true;
}

/// Gives waiting texts the free places, in their order. Passes over prompts come first.
GenerationPasses TextSchedule::plan_passes(std::span<GeneratedText> texts) const {
  std::vector<uint8_t> taken(static_cast<size_t>(capacity_.sequences), 0);
  for (size_t i = 0, seen = 0; i < texts.size() && seen < taken.size(); ++i) {
    const GeneratedText& text = texts[i];
    const bool of_beam = text.sample > 0 && request_.beams.beams > 1 && (&text - text.sample)->running;
    if ((!text.running && !of_beam) || text.slot < 0) continue;
    taken[static_cast<size_t>(text.slot)] = 1;
    ++seen;
  }
  std::vector<int64_t> free;
  for (int64_t slot = capacity_.sequences; slot-- > 0;) {
    if (taken[static_cast<size_t>(slot)] == 0) free.push_back(slot);
  }
  GenerationPasses passes;
  int64_t prefill_left = capacity_.rows(), chunks_left = capacity_.rows();
  for (size_t i = 0; i < texts.size(); ++i) {
    GeneratedText& text = texts[i];
    if (!text.running) continue;
    if (text.slot < 0 && (prefill_left == 0 || !admit(texts, i, free))) break;  // no text overtakes another
    if (text.leader != nullptr) continue;
    // The texts beside a prompt decide where it is cut: its last piece is read as the others are, whatever its length.
    if (text.cached >= static_cast<int64_t>(text.prompt_length) && text.left() == 1) {
      passes.decode.push_back({&text, 1});
      continue;
    }
    int64_t& left = text.cached > 0 ? chunks_left : prefill_left;
    const int64_t tokens = std::min(left, text.left());
    if (capacity_.selects() && tokens < text.left()) {  // which keys are kept follows from the whole prompt
      prefill_left = 0;
      continue;
    }
    left -= tokens;
    if (tokens > 0) (text.cached > 0 ? passes.chunks : passes.prefill).push_back({&text, tokens});
  }
  if (!passes.prefill.empty() || !passes.chunks.empty()) passes.decode.clear();
  return passes;
}

/// Number of tokens of a text that a pass over all of it reads.
int64_t TextSchedule::window_of(const GeneratedText& text) const {
  auto window = static_cast<int64_t>(text.ids.size());
  if (request_.slides) window = std::min(window, capacity_.context);
  if (window > capacity_.context) {
    throw UserError(ExitCode::bad_content, "prompt " + std::to_string(text.prompt + 1) + " has " +
                                               std::to_string(window) + " tokens, more than the context of " +
                                               std::to_string(capacity_.context) + "; shorten it");
  }
  return window;
}

}  // namespace llmtrain
