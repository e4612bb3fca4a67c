#include "generate/token_drawer.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/error.hpp"
#include "core/kept_tokens.hpp"
#include "core/parallel_for.hpp"
#include "core/philox.hpp"
#include "core/profile.hpp"
#include "generate/sampler.hpp"
#include "kernels/logprob.hpp"

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
  const std::vector<int32_t> prompt(first.ids.begin(),
                                    first.ids.begin() + static_cast<std::ptrdiff_t>(first.prompt_length));
  for (size_t b = 0; b < running.size(); ++b) {
    GeneratedText& text = *after[b];
    text.ids = prompt;
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

/// Sets the bits of the tokens that sampling can draw from these logits.
void mark_kept(std::span<uint32_t> bits, std::span<const float> logits, const SamplingOptions& options) {
  const std::vector<double> weights = token_weights(logits, options);
  for (size_t id = 0; id < weights.size(); ++id) {
    if (weights[id] > 0) bits[id / 32] |= 1u << id % 32;
  }
}

bool is_end(const GenerationRequest& request, int32_t token) {
  return std::ranges::find(request.eos, token) != request.eos.end();
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

void TokenDrawer::plan(Arena& arena) {
  const int64_t sequences = capacity_.sequences, rows = capacity_.vocabulary_rows;
  arena.add(logits_, MemoryCategory::activations, "generation.logits", DType::f32, {sequences, rows});
  if (!capacity_.records_logp) return;
  arena.add(targets_, MemoryCategory::activations, "generation.targets", DType::i32, {sequences});
  arena.add(logp_, MemoryCategory::activations, "generation.logp", DType::f32, {sequences});
  arena.add(kept_, MemoryCategory::activations, "generation.kept", DType::u32, {sequences, (rows + 31) / 32});
}

void TokenDrawer::draw(Context& ctx, const Batch& batch, std::span<const int64_t> rows, std::span<const Draw> draws,
                       const GenerationRequest& request, const GenerationCache& cache) {
  if (rows.empty()) {  // prompts that are not at their end yet
    if (request.ranks != nullptr) model_.logits(ctx, nullptr, {}, {});
    return;
  }
  if (!request.records_logp) ctx.role = ProductRole::decoding;  // one row per text
  ProfileSpan phase(SpanKind::phase, "head");
  const Tensor logits = logits_.rows(0, static_cast<int64_t>(rows.size()));
  model_.logits(ctx, &batch, rows, logits);
  if (request.records_logp && request.sampling.temperature > 0 && request.sampling.temperature != 1) {
    temper_logits(logits, static_cast<float>(request.sampling.temperature), {}, request.vocabulary, ctx.stream);
  }
  float* values = logits.as<float>();
  if (!device_memory_is_host()) {
    host_logits_.resize(static_cast<size_t>(logits.numel()));
    values = host_logits_.data();
    copy_to_host(values, logits.data, logits.bytes(), ctx.stream);
    ctx.stream.synchronize();
  }
  phase.next("drawing");
  const RowsOfLogits host{values, static_cast<size_t>(capacity_.vocabulary_rows),
                          static_cast<size_t>(request.vocabulary)};
  if (request.beams.beams > 1) return advance_beams(host, draws, request, cache, ctx.stream);
  sample(ctx, logits, host, draws, request);
}

void TokenDrawer::sample(Context& ctx, const Tensor& logits, const RowsOfLogits& host, std::span<const Draw> draws,
                         const GenerationRequest& request) {
  SamplingOptions sampling = request.sampling;
  if (request.records_logp && sampling.temperature > 0) sampling.temperature = 1;  // the logits are divided already
  std::vector<int32_t> drawn(draws.size());
  const bool excludes = request.records_logp && (sampling.top_k > 0 || sampling.top_p < 1 || sampling.min_p > 0);
  const auto words = static_cast<size_t>((request.vocabulary + 31) / 32);
  std::vector<uint32_t> kept(excludes ? words * draws.size() : 0);
  parallel_for(draws.size(), request.threads, [&](size_t i) {
    GeneratedText& text = *draws[i].text;
    const std::span<const float> given = host.row(draws[i].row);
    std::vector<float> processed;
    std::span<const float> choices = given;
    if (sampling.repetition_penalty != 1 || sampling.no_repeat_ngram > 0) {
      processed.assign(given.begin(), given.end());
      penalize_repetition(processed, text.ids, sampling.repetition_penalty);
      exclude_repeated_ngrams(processed, text.ids, sampling.no_repeat_ngram);
      choices = processed;
    }
    const int64_t number = request.numbers.empty() ? static_cast<int64_t>(text.prompt) : request.numbers[text.prompt];
    const uint64_t key = random_key(request.seed, RandomPurpose::sampling, static_cast<uint64_t>(request.step),
                                    static_cast<uint64_t>(number));
    drawn[i] = sample_token(choices, sampling, random_bits(key, text.sample, static_cast<uint64_t>(text.made())));
    if (request.gives_logp) text.result.logp.push_back(log_probability(given, drawn[i]));
    if (excludes) mark_kept(std::span(kept).subspan(i * words, words), choices, sampling);
  });
  if (request.agree) request.agree(drawn);
  if (request.records_logp) record(ctx, logits, draws, drawn, kept, request.vocabulary);
  for (size_t i = 0; i < draws.size(); ++i) append(*draws[i].text, drawn[i], request);
}

/// Appends the log-probabilities of the tokens that were drawn from these logits, and the tokens that were kept.
void TokenDrawer::record(Context& ctx, const Tensor& logits, std::span<const Draw> draws,
                         std::span<const int32_t> drawn, std::span<const uint32_t> kept, int64_t vocabulary) {
  const int64_t count = logits.dim(0);
  const Tensor targets = targets_.rows(0, count), logp = logp_.rows(0, count);
  copy_to_device(targets.data, drawn.data(), targets.bytes(), ctx.stream);
  if (!kept.empty()) {
    const Tensor bits(kept_.data, DType::u32, {count, (vocabulary + 31) / 32});
    copy_to_device(bits.data, kept.data(), bits.bytes(), ctx.stream);
    temper_logits(logits, 1, bits, vocabulary, ctx.stream);
  }
  logprob_forward({logp, {}, {}, {}}, logits, targets, vocabulary, ctx.stream);
  std::vector<float> values(draws.size());
  copy_to_host(values.data(), logp.data, logp.bytes(), ctx.stream);
  ctx.stream.synchronize();
  const size_t words = kept.size() / draws.size();
  for (size_t i = 0; i < draws.size(); ++i) {
    Continuation& result = draws[i].text->result;
    result.logp.push_back(values[i]);
    if (words > 0) append_kept(result.kept, kept.subspan(i * words, words));
  }
}

void TokenDrawer::append(GeneratedText& text, int32_t token, const GenerationRequest& request) const {
  const auto end = [&](GenerationEnd why) {
    text.running = false;
    text.result.end = why;
    if (request.on_end) {
      request.on_end(text.prompt * static_cast<size_t>(request.samples) + text.sample, text.take_result());
    }
  };
  if (is_end(request, token)) {
    text.result.eos = token;
    return end(GenerationEnd::eos);
  }
  text.ids.push_back(token);
  const size_t number = text.prompt * static_cast<size_t>(request.samples) + text.sample;
  if (request.on_token && !request.on_token(number, token)) return end(GenerationEnd::stopped);
  if (text.made() >= request.max_new_tokens) return end(GenerationEnd::length);
  if (!request.slides && static_cast<int64_t>(text.ids.size()) >= capacity_.context) end(GenerationEnd::context);
}

}  // namespace llmtrain
