#include "generate/generator.hpp"

#include <algorithm>
#include <functional>

#include "core/activity.hpp"
#include "core/error.hpp"
#include "core/parallel_for.hpp"
#include "core/philox.hpp"
#include "kernels/logprob.hpp"

namespace llmtrain {

/// One prompt and its continuation.
struct Generator::Text {
  size_t prompt = 0;
  std::vector<int32_t> ids;
  size_t prompt_length = 0;
  int64_t slot = -1;     ///< slot in the cache; -1: it waits for one
  bool running = true;   ///< false: it has ended
  bool started = false;  ///< the cache has its tokens, but the last
  Continuation result = {};

  int64_t made() const { return static_cast<int64_t>(ids.size() - prompt_length); }
};

/// Texts of the next two passes, each of which gives them a token.
struct Generator::Passes {
  std::vector<Text*> whole;  ///< all their tokens are processed
  std::vector<Text*> last;   ///< their last token is: the cache has the others
};

namespace {

void append_row(HostBatch& host, int32_t id, int64_t position, int64_t slot) {
  host.ids.push_back(id);
  host.positions.push_back(static_cast<int32_t>(position));
  host.targets.push_back(ignore_target);
  host.loss_weights.push_back(0);
  host.sequence_ids.push_back(slot);
  host.sequence_offsets.push_back(static_cast<int32_t>(position));
}

/// Sets the bits of the tokens that sampling can draw from these logits.
void mark_kept(std::span<uint32_t> bits, std::span<const float> logits, const SamplingOptions& options) {
  const std::vector<double> weights = token_weights(logits, options);
  for (size_t id = 0; id < weights.size(); ++id) {
    if (weights[id] > 0) bits[id / 32] |= 1u << id % 32;
  }
}

void end_segment(HostBatch& host) { host.segments.push_back(static_cast<int32_t>(host.ids.size())); }

}  // namespace

Generator::Generator(Model& model, const GeneratorRoom& room) : model_(model), room_(room) {
  LLMTRAIN_CHECK(room.sequences > 0 && room.context > 0, "generation needs room for a token");
  room_.cache = room.cache && model.can_cache();
}

int64_t Generator::rows() const { return std::max(room_.context, room_.sequences); }

void Generator::plan(Arena& arena, DType compute) {
  if (room_.cache) model_.plan_cache(arena, cache_, compute, room_.sequences, room_.context);
  batch_.plan(arena, rows(), rows());
  arena.add(logits_, MemoryCategory::activations, "generation.logits", DType::f32,
            {room_.sequences, room_.vocabulary_rows});
  if (!room_.records_logp) return;
  arena.add(targets_, MemoryCategory::activations, "generation.targets", DType::i32, {room_.sequences});
  arena.add(logp_, MemoryCategory::activations, "generation.logp", DType::f32, {room_.sequences});
  arena.add(kept_, MemoryCategory::activations, "generation.kept", DType::u32,
            {room_.sequences, (room_.vocabulary_rows + 31) / 32});
}

std::vector<Continuation> Generator::run(ParamStore& params, Arena& arena, Stream& stream,
                                         const GenerationRequest& request) {
  LLMTRAIN_CHECK(!(request.slides && room_.cache), "the cache of a text has its first tokens");
  LLMTRAIN_CHECK(!(request.agree && request.ranks != nullptr), "ranks agree on tokens or have prompts of their own");
  LLMTRAIN_CHECK(!request.records_logp || (room_.records_logp && request.sampling.repetition_penalty == 1),
                 "log-probabilities are not recorded here");
  Context ctx{params, arena, stream, request.seed, request.step, false};
  if (room_.cache) ctx.cache = &cache_;
  std::vector<Text> texts;
  for (size_t p = 0; p < request.prompts.size(); ++p) {
    LLMTRAIN_CHECK(!request.prompts[p].empty(), "a continuation needs at least one token");
    Text& text = texts.emplace_back(Text{p, request.prompts[p], request.prompts[p].size()});
    text.running = request.max_new_tokens > 0;
  }
  // An error of one rank's texts ends the passes of all ranks after the current ones.
  std::exception_ptr failure;
  const auto attempt = [&](const auto& pass) {
    try {
      pass();
    } catch (const UserError&) {
      if (request.ranks == nullptr) throw;
      failure = std::current_exception();
    }
  };
  while (true) {
    Passes passes;
    attempt([&] { passes = plan_passes(texts, request); });
    int64_t work[] = {passes.whole.empty() ? 0 : 1, passes.last.empty() ? 0 : 1, failure ? 1 : 0};
    if (request.ranks != nullptr) request.ranks->maximum(work);
    if (work[2] != 0 || (work[0] == 0 && work[1] == 0)) break;
    if (request.interrupted && request.interrupted()) break;
    report_progress();
    if (work[0] != 0) attempt([&] { run_whole_texts(ctx, passes.whole, request); });
    if (work[1] != 0) attempt([&] { run_last_tokens(ctx, passes.last, request); });
  }
  if (failure) std::rethrow_exception(failure);
  std::vector<Continuation> results;
  for (Text& text : texts) {
    text.ids.erase(text.ids.begin(), text.ids.begin() + static_cast<std::ptrdiff_t>(text.prompt_length));
    text.result.tokens = std::move(text.ids);
    results.push_back(std::move(text.result));
  }
  return results;
}

/// Gives waiting texts the free places, in their order. Texts that need a pass over all their tokens come first, those
/// with the fewest new tokens before others.
Generator::Passes Generator::plan_passes(std::span<Text> texts, const GenerationRequest& request) const {
  std::vector<uint8_t> taken(static_cast<size_t>(room_.sequences), 0);
  for (const Text& text : texts) {
    if (text.running && text.slot >= 0) taken[static_cast<size_t>(text.slot)] = 1;
  }
  Passes passes;
  int64_t used = 0;
  bool full = false;  // no text overtakes one that waits for rows
  auto place = taken.begin();
  std::vector<Text*> waiting;
  for (Text& text : texts) {
    if (!text.running) continue;
    (text.started && room_.cache ? passes.last : waiting).push_back(&text);
  }
  std::ranges::stable_sort(waiting, std::less(), [](const Text* text) { return text->made(); });
  for (Text* const next : waiting) {
    Text& text = *next;
    const int64_t window = window_of(text, request);
    if (full || used + window > rows()) {
      full = true;
      continue;
    }
    if (text.slot < 0) {
      place = std::find(place, taken.end(), 0);
      if (place == taken.end()) continue;
      text.slot = place - taken.begin();
      *place = 1;
    }
    used += window;
    passes.whole.push_back(&text);
  }
  if (!passes.whole.empty()) passes.last.clear();
  return passes;
}

/// Number of tokens of a text that a pass over all of it reads.
int64_t Generator::window_of(const Text& text, const GenerationRequest& request) const {
  auto window = static_cast<int64_t>(text.ids.size());
  if (request.slides) window = std::min(window, room_.context);
  if (window > room_.context) {
    throw UserError(ExitCode::bad_content, "prompt " + std::to_string(text.prompt + 1) + " has " +
                                               std::to_string(window) + " tokens, more than the context of " +
                                               std::to_string(room_.context) + "; shorten it");
  }
  return window;
}

/// Takes part in a pass of other ranks.
void Generator::run_idle(Context& ctx) {
  model_.forward(ctx, nullptr);
  model_.logits(ctx, nullptr, {}, {});
}

/// Generates one more token of each text, from all of its tokens.
void Generator::run_whole_texts(Context& ctx, std::span<Text* const> texts, const GenerationRequest& request) {
  cache_.decoding = false;
  ctx.role = ProductRole::prefill;
  if (texts.empty()) return run_idle(ctx);
  HostBatch host;
  host.segments.push_back(0);
  std::vector<int64_t> last_rows;
  for (Text* text : texts) {
    const int64_t window = window_of(*text, request);
    for (int64_t i = 0; i < window; ++i) append_row(host, *(text->ids.end() - window + i), i, text->slot);
    end_segment(host);
    last_rows.push_back(static_cast<int64_t>(host.ids.size()) - 1);
    text->started = true;
  }
  const Batch batch = batch_.upload(host, ctx.stream);
  model_.forward(ctx, &batch);
  draw(ctx, batch, last_rows, texts, request);
}

/// Generates one more token of each text; the cache holds all tokens but the last.
void Generator::run_last_tokens(Context& ctx, std::span<Text* const> texts, const GenerationRequest& request) {
  cache_.decoding = true;
  ctx.role = request.records_logp ? ProductRole::prefill : ProductRole::decoding;
  if (texts.empty()) return run_idle(ctx);
  HostBatch host;
  host.segments.push_back(0);
  std::vector<int64_t> rows;
  for (const Text* text : texts) {
    rows.push_back(static_cast<int64_t>(host.ids.size()));
    append_row(host, text->ids.back(), static_cast<int64_t>(text->ids.size()) - 1, text->slot);
    end_segment(host);
  }
  const Batch batch = batch_.upload(host, ctx.stream);
  model_.forward(ctx, &batch);
  draw(ctx, batch, rows, texts, request);
}

void Generator::draw(Context& ctx, const Batch& batch, std::span<const int64_t> rows, std::span<Text* const> texts,
                     const GenerationRequest& request) {
  if (!request.records_logp) ctx.role = ProductRole::decoding;  // one row per text
  const Tensor drawn_from = logits_.rows(0, static_cast<int64_t>(rows.size()));
  model_.logits(ctx, &batch, rows, drawn_from);
  SamplingOptions sampling = request.sampling;
  if (request.records_logp && sampling.temperature > 0) {
    temper_logits(drawn_from, static_cast<float>(sampling.temperature), {}, request.vocabulary, ctx.stream);
    sampling.temperature = 1;
  }
  float* values = drawn_from.as<float>();
  if (!device_memory_is_host()) {
    host_logits_.resize(static_cast<size_t>(drawn_from.numel()));
    values = host_logits_.data();
    copy_to_host(values, drawn_from.data, drawn_from.bytes(), ctx.stream);
    ctx.stream.synchronize();
  }
  std::vector<int32_t> drawn(texts.size());
  const bool excludes = request.records_logp && (sampling.top_k > 0 || sampling.top_p < 1 || sampling.min_p > 0);
  const auto words = static_cast<size_t>((request.vocabulary + 31) / 32);
  std::vector<uint32_t> kept(excludes ? words * texts.size() : 0);
  parallel_for(texts.size(), request.threads, [&](size_t i) {
    const Text& text = *texts[i];
    const std::span<float> choices(values + i * static_cast<size_t>(room_.vocabulary_rows),
                                   static_cast<size_t>(request.vocabulary));
    penalize_repetition(choices, text.ids, sampling.repetition_penalty);
    const int64_t number = request.numbers.empty() ? static_cast<int64_t>(text.prompt) : request.numbers[text.prompt];
    const uint64_t key = random_key(request.seed, RandomPurpose::sampling, static_cast<uint64_t>(request.step),
                                    static_cast<uint64_t>(number));
    drawn[i] = sample_token(choices, sampling, random_bits(key, 0, static_cast<uint64_t>(text.made())));
    if (excludes) mark_kept(std::span(kept).subspan(i * words, words), choices, sampling);
  });
  if (request.agree) request.agree(drawn);
  if (request.records_logp) record(ctx, drawn_from, texts, drawn, kept, request.vocabulary);
  for (size_t i = 0; i < texts.size(); ++i) append(*texts[i], drawn[i], request);
}

/// Appends the log-probabilities of the tokens that were drawn from these logits, and the tokens that were kept.
void Generator::record(Context& ctx, const Tensor& logits, std::span<Text* const> texts, std::span<const int32_t> drawn,
                       std::span<const uint32_t> kept, int64_t vocabulary) {
  const int64_t count = logits.dim(0);
  const Tensor targets = targets_.rows(0, count), logp = logp_.rows(0, count);
  copy_to_device(targets.data, drawn.data(), targets.bytes(), ctx.stream);
  if (!kept.empty()) {
    const Tensor bits(kept_.data, DType::u32, {count, (vocabulary + 31) / 32});
    copy_to_device(bits.data, kept.data(), bits.bytes(), ctx.stream);
    temper_logits(logits, 1, bits, vocabulary, ctx.stream);
  }
  logprob_forward({logp, {}, {}, {}}, logits, targets, vocabulary, ctx.stream);
  std::vector<float> values(texts.size());
  copy_to_host(values.data(), logp.data, logp.bytes(), ctx.stream);
  ctx.stream.synchronize();
  const size_t words = kept.size() / texts.size();
  for (size_t i = 0; i < texts.size(); ++i) {
    Continuation& result = texts[i]->result;
    result.logp.push_back(values[i]);
    const auto bits = kept.begin() + static_cast<std::ptrdiff_t>(i * words);
    result.kept.insert(result.kept.end(), bits, bits + static_cast<std::ptrdiff_t>(words));
  }
}

void Generator::append(Text& text, int32_t token, const GenerationRequest& request) const {
  const auto end = [&](GenerationEnd why) {
    text.running = false;
    text.result.end = why;
  };
  if (std::find(request.eos.begin(), request.eos.end(), token) != request.eos.end()) {
    text.result.eos = token;
    return end(GenerationEnd::eos);
  }
  text.ids.push_back(token);
  if (request.on_token && !request.on_token(text.prompt, token)) return end(GenerationEnd::stopped);
  if (text.made() >= request.max_new_tokens) return end(GenerationEnd::length);
  if (!request.slides && static_cast<int64_t>(text.ids.size()) >= room_.context) end(GenerationEnd::context);
}

}  // namespace llmtrain
