#include "generate/beam_texts.hpp"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "core/parallel_for.hpp"
#include "generate/sampler.hpp"

namespace llmtrain {

namespace {

/// Log-probabilities [V] of `logits`.
std::vector<float> log_softmax(std::span<const float> logits) {
  const double top = logits[highest(logits)];
  double mass = 0;
  for (const float logit : logits) mass += std::exp(double{logit} - top);
  const double log_mass = top + std::log(mass);
  std::vector<float> values;
  values.reserve(logits.size());
  for (const float logit : logits) values.push_back(static_cast<float>(double{logit} - log_mass));
  return values;
}

/// Gives the running beams of a search the texts of its prompt. The cache of a beam's parent becomes its own: the first
/// of several children takes it over, the others copy it into places that are no longer in use.
void place_beams(GeneratedText& first, const GenerationRequest& request, const GenerationCache& cache, Stream& stream) {
  const auto& running = first.search->running();
  const std::vector<GeneratedText*> before = first.beams.empty() ? std::vector<GeneratedText*>{&first} : first.beams;
  std::vector<GeneratedText*> after(running.size(), nullptr);
  std::vector<uint8_t> used(static_cast<size_t>(request.beams.beams), 0);
  for (size_t b = 0; b < running.size(); ++b) {
    GeneratedText* const parent = before[running[b].parent];
    if (std::exchange(used[parent->sample], uint8_t{1}) == 0) after[b] = parent;
  }
  const int64_t cached = before.front()->cached;
  for (size_t b = 0; b < running.size(); ++b) {
    if (after[b] != nullptr) continue;
    const auto place = std::ranges::find(used, uint8_t{0});
    *place = 1;
    after[b] = &first + (place - used.begin());
    cache.copy(after[b]->slot, before[running[b].parent]->slot, cached, stream);
  }
  for (int64_t b = 0; b < request.beams.beams; ++b) (&first + b)->running = used[static_cast<size_t>(b)] != 0;
  first.running = true;  // while the search goes on
  for (size_t b = 0; b < running.size(); ++b) {
    GeneratedText& text = *after[b];
    text.ids = request.prompts[text.prompt];
    text.ids.insert(text.ids.end(), running[b].tokens.begin(), running[b].tokens.end());
    text.cached = cached;
  }
  first.beams = std::move(after);
}

void end_search(GeneratedText& first, const GenerationRequest& request) {
  const auto& finished = first.search->finished();
  for (int64_t b = 0; b < request.beams.beams; ++b) (&first + b)->running = false;
  for (int64_t s = 0; s < request.samples; ++s) {
    Continuation& result = (&first + s)->result;
    if (s < std::ssize(finished)) {
      const BeamSearch::Beam& beam = finished[static_cast<size_t>(s)];
      result.tokens = beam.tokens;
      result.score = beam.score;
      result.end = beam.ended ? GenerationEnd::eos : GenerationEnd::length;
      if (beam.ended) {
        result.eos = result.tokens.back();
        result.tokens.pop_back();
      }
    }
    const size_t number = first.prompt * static_cast<size_t>(request.samples) + static_cast<size_t>(s);
    if (request.on_end) request.on_end(number, std::move(result));
  }
}

}  // namespace

void advance_beams(const RowsOfLogits& logits, std::span<const Draw> draws, const GenerationRequest& request,
                   const GenerationCache& cache, Stream& stream) {
  std::vector<std::vector<float>> processed(draws.size());
  parallel_for(draws.size(), request.threads, [&](size_t i) {
    processed[i] = log_softmax(logits.row(draws[i].row));
    penalize_repetition(processed[i], draws[i].text->ids, request.sampling.repetition_penalty);
    exclude_repeated_ngrams(processed[i], draws[i].text->ids, request.sampling.no_repeat_ngram);
  });
  for (size_t i = 0; i < draws.size();) {
    GeneratedText& first = *(draws[i].text - draws[i].text->sample);
    size_t end = i;
    while (end < draws.size() && draws[end].text->prompt == first.prompt) ++end;
    std::vector<std::span<const float>> rows;
    for (GeneratedText* const beam : first.beams.empty() ? std::vector<GeneratedText*>{&first} : first.beams) {
      const auto own = std::ranges::find(draws, beam, &Draw::text);
      rows.emplace_back(processed[static_cast<size_t>(own - draws.begin())]);
    }
    first.search->advance(rows);
    if (first.search->done()) {
      end_search(first, request);
    } else {
      place_beams(first, request, cache, stream);
    }
    i = end;
  }
}

}  // namespace llmtrain
