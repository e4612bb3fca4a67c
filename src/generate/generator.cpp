#include "generate/generator.hpp"

#include <algorithm>

#include "core/error.hpp"
#include "core/philox.hpp"

namespace llmtrain {

/// One prompt and what it has become.
struct Generator::Text {
  size_t prompt = 0;
  int64_t slot = 0;  ///< of the cache
  std::vector<int32_t> ids;
  size_t prompt_length = 0;
  GenerationEnd end = GenerationEnd::length;
  bool running = true;
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

}  // namespace

Generator::Generator(Model& model, DType compute, int64_t vocabulary_rows, int64_t sequences, int64_t context)
    : model_(model), compute_(compute), rows_of_table_(vocabulary_rows), sequences_(sequences), context_(context) {
  LLMTRAIN_CHECK(sequences > 0 && context > 0, "generation needs room for a token");
}

void Generator::plan(Arena& arena) {
  const int64_t rows = std::max(context_, sequences_);
  model_.plan(arena, {compute_, rows, false});
  if (model_.can_cache()) model_.plan_cache(arena, cache_, compute_, sequences_, context_);
  batch_.plan(arena, rows, rows);
  arena.add(logits_, MemoryCategory::activations, "generation.logits", DType::f32, {1, rows_of_table_});
}

std::vector<Continuation> Generator::run(ParamStore& params, Arena& arena, Stream& stream,
                                         const GenerationRequest& request) {
  std::vector<Continuation> results(request.prompts.size());
  Context ctx{params, arena, stream, request.seed, 0, false};
  if (model_.can_cache()) ctx.cache = &cache_;
  for (size_t first = 0; first < request.prompts.size(); first += static_cast<size_t>(sequences_)) {
    std::vector<Text> texts;
    for (size_t p = first; p < std::min(request.prompts.size(), first + static_cast<size_t>(sequences_)); ++p) {
      LLMTRAIN_CHECK(!request.prompts[p].empty(), "a continuation needs at least one token");
      texts.push_back({p, static_cast<int64_t>(p - first), request.prompts[p], request.prompts[p].size()});
    }
    begin_texts(ctx, texts, request);
    for (;;) {
      std::vector<Text*> running;
      for (Text& text : texts) {
        if (text.running) running.push_back(&text);
      }
      if (running.empty()) break;
      step_texts(ctx, running, request);
    }
    for (Text& text : texts) {
      text.ids.erase(text.ids.begin(), text.ids.begin() + static_cast<std::ptrdiff_t>(text.prompt_length));
      results[text.prompt] = {std::move(text.ids), text.end};
    }
  }
  return results;
}

/// Whole prompts, as many at a time as rows were planned for; the first new token of each.
void Generator::begin_texts(Context& ctx, std::span<Text> texts, const GenerationRequest& request) {
  cache_.decoding = false;
  for (size_t next = 0; next < texts.size();) {
    HostBatch host;
    host.segments.push_back(0);
    std::vector<int64_t> last_rows;
    std::vector<Text*> begun;
    while (next < texts.size()) {
      Text& text = texts[next];
      const auto length = static_cast<int64_t>(text.ids.size());
      if (length > context_) {
        throw UserError(ExitCode::bad_content, "prompt " + std::to_string(text.prompt + 1) + " has " +
                                                   std::to_string(length) + " tokens, more than the context of " +
                                                   std::to_string(context_) + ": shorten it");
      }
      if (static_cast<int64_t>(host.ids.size()) + length > std::max(context_, sequences_)) break;
      for (int64_t i = 0; i < length; ++i) append_row(host, text.ids[static_cast<size_t>(i)], i, text.slot);
      host.segments.push_back(static_cast<int32_t>(host.ids.size()));
      last_rows.push_back(static_cast<int64_t>(host.ids.size()) - 1);
      begun.push_back(&text);
      ++next;
    }
    const Batch batch = batch_.upload(host, ctx.stream);
    model_.forward(ctx, &batch);
    draw(ctx, batch, last_rows, begun, request);
  }
}

/// One more token of each text.
void Generator::step_texts(Context& ctx, const std::vector<Text*>& texts, const GenerationRequest& request) {
  if (ctx.cache == nullptr) {  // without a cache every text is run from its beginning
    for (Text* text : texts) begin_texts(ctx, std::span(text, 1), request);
    return;
  }
  cache_.decoding = true;
  HostBatch host;
  host.segments.push_back(0);
  std::vector<int64_t> rows;
  for (const Text* text : texts) {
    rows.push_back(static_cast<int64_t>(host.ids.size()));
    append_row(host, text->ids.back(), static_cast<int64_t>(text->ids.size()) - 1, text->slot);
    host.segments.push_back(static_cast<int32_t>(host.ids.size()));
  }
  const Batch batch = batch_.upload(host, ctx.stream);
  model_.forward(ctx, &batch);
  draw(ctx, batch, rows, texts, request);
}

void Generator::draw(Context& ctx, const Batch& batch, std::span<const int64_t> rows, std::span<Text* const> texts,
                     const GenerationRequest& request) {
  std::vector<float> logits(static_cast<size_t>(rows_of_table_));
  for (size_t i = 0; i < texts.size(); ++i) {
    Text& text = *texts[i];
    if (static_cast<int64_t>(text.ids.size() - text.prompt_length) >= request.max_new_tokens) {
      text.running = false;
      continue;
    }
    model_.logits(ctx, &batch, rows[i], logits_);
    copy_to_host(logits.data(), logits_.data, logits_.bytes(), ctx.stream);
    ctx.stream.synchronize();
    const std::span<float> choices(logits.data(), static_cast<size_t>(request.vocabulary));
    penalize_repetition(choices, text.ids, request.sampling.repetition_penalty);
    const uint64_t key = random_key(request.seed, RandomPurpose::sampling, 0, text.prompt);
    const int32_t token =
        sample_token(choices, request.sampling, random_bits(key, 0, text.ids.size() - text.prompt_length));
    if (std::find(request.eos.begin(), request.eos.end(), token) != request.eos.end()) {
      text.running = false;
      text.end = GenerationEnd::eos;
      continue;
    }
    text.ids.push_back(token);
    const auto made = static_cast<int64_t>(text.ids.size() - text.prompt_length);
    if (request.on_token && !request.on_token(text.prompt, token)) {
      text.running = false;
      text.end = GenerationEnd::stopped;
    } else if (made >= request.max_new_tokens) {
      text.running = false;
      text.end = GenerationEnd::length;
    } else if (static_cast<int64_t>(text.ids.size()) >= context_) {
      text.running = false;
      text.end = GenerationEnd::context;
    }
  }
}

}  // namespace llmtrain
