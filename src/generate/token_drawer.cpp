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
#include "generate/token_filters.hpp"
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

/// 32 uniform bits for the next token of a text.
uint32_t bits_of(const GeneratedText& text, const GenerationRequest& request) {
  const int64_t number = request.numbers.empty() ? static_cast<int64_t>(text.prompt) : request.numbers[text.prompt];
  const uint64_t key = random_key(request.seed, RandomPurpose::sampling, static_cast<uint64_t>(request.step),
                                  static_cast<uint64_t>(number));
  return random_bits(key, text.sample, static_cast<uint64_t>(text.made()));
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
  const int64_t of_draw = capacity_.records_logp ? 2 + (rows + 31) / 32 : 1;
  arena.add(results_, MemoryCategory::activations, "generation.results", DType::u32, {sequences, of_draw});
}

bool TokenDrawer::draws_on_device(const GenerationRequest& request) {
  return request.beams.beams == 1 && request.sampling.repetition_penalty == 1 &&
         request.sampling.no_repeat_ngram == 0 && !request.gives_logp;
}

/// Filters of the logits as the device has them: recorded log-probabilities need logits that are divided already.
TokenFilters TokenDrawer::filters(const GenerationRequest& request) {
  TokenFilters filters = filters_of(request.sampling);
  if (request.records_logp && filters.temperature > 0) filters.temperature = 1;
  return filters;
}

TokenDrawer::Results TokenDrawer::results(int64_t count, const GenerationRequest& request) const {
  const bool excludes = request.records_logp && filters(request).exclude_tokens();
  const int64_t words = excludes ? (request.vocabulary + 31) / 32 : 0;
  auto* const memory = results_.as<uint32_t>();
  Results results;
  results.all = Tensor(memory, DType::u32, {count * ((request.records_logp ? 2 : 1) + words)});
  results.tokens = Tensor(memory, DType::i32, {count});
  if (request.records_logp) results.logp = Tensor(memory + count, DType::f32, {count});
  if (excludes) results.kept = Tensor(memory + 2 * count, DType::u32, {count, words});
  return results;
}

std::vector<uint32_t> TokenDrawer::numbers(std::span<const Draw> draws, const GenerationRequest& request) {
  std::vector<uint32_t> numbers;
  if (!draws_on_device(request)) return numbers;
  for (const Draw& draw : draws) {
    numbers.push_back(static_cast<uint32_t>(draw.row));
    numbers.push_back(bits_of(*draw.text, request));
  }
  return numbers;
}

void TokenDrawer::compute(Context& ctx, const Batch& batch, std::span<const int64_t> rows, const Tensor& numbers,
                          const GenerationRequest& request) const {
  if (rows.empty()) {  // prompts that are not at their end yet
    if (request.ranks != nullptr) model_.logits(ctx, nullptr, {}, {});
    return;
  }
  if (!request.records_logp) ctx.role = ProductRole::decoding;  // one row per text
  ProfileSpan phase(SpanKind::phase, "head");
  const Tensor logits = logits_.rows(0, std::ssize(rows));
  model_.logits(ctx, &batch, rows, logits);
  if (!draws_on_device(request)) return;
  phase.next("drawing");
  if (request.records_logp && request.sampling.temperature > 0 && request.sampling.temperature != 1) {
    temper_logits(logits, static_cast<float>(request.sampling.temperature), {}, request.vocabulary, ctx.stream);
  }
  const int64_t count = numbers.numel() / 2;
  const Results drawn = results(count, request);
  sample_tokens(drawn.tokens, drawn.kept, logits, Tensor(numbers.data, DType::u32, {count, 2}), request.vocabulary,
                filters(request), ctx.stream);
  record(ctx, logits, drawn, request);
}

void TokenDrawer::take(Context& ctx, int64_t rows, std::span<const Draw> draws, const GenerationRequest& request,
                       const GenerationCache& cache) {
  if (draws.empty()) return;
  const ProfileSpan phase(SpanKind::phase, "drawing");
  const Tensor logits = logits_.rows(0, rows);
  if (draws_on_device(request)) return take_results(ctx, logits, draws, request);
  float* values = logits.as<float>();
  if (!device_memory_is_host()) {
    if (host_logits_.bytes() == 0) host_logits_ = PinnedBuffer(logits_.bytes());
    values = static_cast<float*>(host_logits_.data());
    copy_to_host(values, logits.data, logits.bytes(), ctx.stream);
    ctx.stream.synchronize();
  }
  const RowsOfLogits host{values, static_cast<size_t>(capacity_.vocabulary_rows),
                          static_cast<size_t>(request.vocabulary)};
  if (request.beams.beams > 1) return advance_beams(host, draws, request, cache, ctx.stream);
  sample_on_host(host, draws, request);
}

/// Computes log-probabilities under the tokens that were kept, if these are recorded.
void TokenDrawer::record(Context& ctx, const Tensor& logits, const Results& drawn,
                         const GenerationRequest& request) const {
  if (!request.records_logp) return;
  if (!drawn.kept.empty()) temper_logits(logits, 1, drawn.kept, request.vocabulary, ctx.stream);
  logprob_forward({drawn.logp, {}, {}, {}}, logits, drawn.tokens, request.vocabulary, ctx.stream);
}

/// Waits for the results, and appends them to the texts.
void TokenDrawer::take_results(Context& ctx, const Tensor& logits, std::span<const Draw> draws,
                               const GenerationRequest& request) {
  const Results drawn = results(std::ssize(draws), request);
  if (host_results_.bytes() == 0) host_results_ = PinnedBuffer(results_.bytes());
  copy_to_host(host_results_.data(), drawn.all.data, drawn.all.bytes(), ctx.stream);
  ctx.stream.synchronize();
  auto* const tokens = static_cast<int32_t*>(host_results_.data());
  const std::span<int32_t> all(tokens, draws.size());
  if (std::ranges::count(all, undecided_token) > 0) decide(ctx, logits, draws, drawn, request);
  if (request.agree) request.agree(all);
  const auto* const words = static_cast<const uint32_t*>(host_results_.data()) + 2 * draws.size();
  const auto kept = static_cast<size_t>(drawn.kept.empty() ? 0 : drawn.kept.dim(1));
  for (size_t i = 0; i < draws.size(); ++i) {
    Continuation& result = draws[i].text->result;
    if (request.records_logp) result.logp.push_back(static_cast<const float*>(host_results_.data())[draws.size() + i]);
    if (kept > 0) append_kept(result.kept, {words + i * kept, kept});
    append(*draws[i].text, all[i], request);
  }
}

/// Draws the tokens that the device left undecided, and repeats what follows from tokens. Throws UserError(diverged) if
/// it was because of logits that are not finite.
void TokenDrawer::decide(Context& ctx, const Tensor& logits, std::span<const Draw> draws, const Results& drawn,
                         const GenerationRequest& request) {
  auto* const tokens = static_cast<int32_t*>(host_results_.data());
  auto* const words = static_cast<uint32_t*>(host_results_.data()) + 2 * draws.size();
  const auto kept = static_cast<size_t>(drawn.kept.empty() ? 0 : drawn.kept.dim(1));
  std::vector<float> row(static_cast<size_t>(request.vocabulary));
  for (size_t i = 0; i < draws.size(); ++i) {
    if (tokens[i] != undecided_token) continue;
    // All its tokens were kept, so that its logits are as before.
    copy_to_host(row.data(), logits.rows(static_cast<int64_t>(draws[i].row), 1).data,
                 static_cast<int64_t>(row.size() * sizeof(float)), ctx.stream);
    ctx.stream.synchronize();
    tokens[i] = draw_token(row, filters(request), bits_of(*draws[i].text, request));
    if (kept == 0) continue;
    const std::span<uint32_t> bits(words + i * kept, kept);
    std::ranges::fill(bits, 0u);
    mark_kept(bits, row, filters(request));
  }
  if (!request.records_logp) return;
  copy_to_device(drawn.all.data, host_results_.data(), drawn.all.bytes(), ctx.stream);
  record(ctx, logits, drawn, request);
  copy_to_host(host_results_.data(), drawn.all.data, drawn.all.bytes(), ctx.stream);
  ctx.stream.synchronize();
}

void TokenDrawer::sample_on_host(const RowsOfLogits& host, std::span<const Draw> draws,
                                 const GenerationRequest& request) const {
  std::vector<int32_t> drawn(draws.size());
  parallel_for(draws.size(), request.threads, [&](size_t i) {
    GeneratedText& text = *draws[i].text;
    const std::span<const float> given = host.row(draws[i].row);
    std::vector<float> choices(given.begin(), given.end());
    penalize_repetition(choices, text.ids, request.sampling.repetition_penalty);
    exclude_repeated_ngrams(choices, text.ids, request.sampling.no_repeat_ngram);
    drawn[i] = sample_token(choices, request.sampling, bits_of(text, request));
    if (request.gives_logp) text.result.logp.push_back(log_probability(given, drawn[i]));
  });
  if (request.agree) request.agree(drawn);
  for (size_t i = 0; i < draws.size(); ++i) append(*draws[i].text, drawn[i], request);
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
