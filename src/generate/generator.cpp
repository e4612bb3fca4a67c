#include "generate/generator.hpp"

#include <algorithm>

#include "core/activity.hpp"
#include "core/error.hpp"
#include "core/philox.hpp"

namespace llmtrain {

/// One prompt and its continuation.
struct Generator::Text {
  size_t prompt = 0;
  int64_t slot = 0;  ///< slot in the cache
  std::vector<int32_t> ids;
  size_t prompt_length = 0;
  GenerationEnd end = GenerationEnd::length;
  bool running = true;

  int64_t made() const { return static_cast<int64_t>(ids.size() - prompt_length); }
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
}

std::vector<Continuation> Generator::run(ParamStore& params, Arena& arena, Stream& stream,
                                         const GenerationRequest& request) {
  LLMTRAIN_CHECK(!(request.slides && room_.cache), "the cache of a text has its first tokens");
  std::vector<Continuation> results(request.prompts.size());
  Context ctx{params, arena, stream, request.seed, request.step, false};
  if (room_.cache) ctx.cache = &cache_;
  const auto sequences = static_cast<size_t>(room_.sequences);
  for (size_t first = 0; first < request.prompts.size(); first += sequences) {
    std::vector<Text> texts;
    for (size_t p = first; p < std::min(request.prompts.size(), first + sequences); ++p) {
      LLMTRAIN_CHECK(!request.prompts[p].empty(), "a continuation needs at least one token");
      texts.push_back({p, static_cast<int64_t>(p - first), request.prompts[p], request.prompts[p].size()});
    }
    for (bool started = false;; started = true) {
      std::vector<Text*> running;
      for (Text& text : texts) {
        if (text.running && text.made() < request.max_new_tokens) running.push_back(&text);
      }
      if (running.empty()) break;
      if (request.interrupted && request.interrupted()) return results;
      report_progress();
      if (started && room_.cache) {
        run_last_tokens(ctx, running, request);
      } else {
        run_whole_texts(ctx, running, request);
      }
    }
    for (Text& text : texts) {
      text.ids.erase(text.ids.begin(), text.ids.begin() + static_cast<std::ptrdiff_t>(text.prompt_length));
      results[text.prompt] = {std::move(text.ids), text.end};
    }
  }
  return results;
}

/// Generates one more token of each text; the number of texts per forward pass is limited by the rows.
void Generator::run_whole_texts(Context& ctx, std::span<Text* const> texts, const GenerationRequest& request) {
  cache_.decoding = false;
  for (size_t next = 0; next < texts.size();) {
    HostBatch host;
    host.segments.push_back(0);
    std::vector<int64_t> last_rows;
    const size_t first = next;
    for (; next < texts.size(); ++next) {
      const Text& text = *texts[next];
      auto window = static_cast<int64_t>(text.ids.size());
      if (request.slides) window = std::min(window, room_.context);
      if (window > room_.context) {
        throw UserError(ExitCode::bad_content, "prompt " + std::to_string(text.prompt + 1) + " has " +
                                                   std::to_string(window) + " tokens, more than the context of " +
                                                   std::to_string(room_.context) + "; shorten it");
      }
      if (static_cast<int64_t>(host.ids.size()) + window > rows()) break;
      for (int64_t i = 0; i < window; ++i) append_row(host, *(text.ids.end() - window + i), i, text.slot);
      end_segment(host);
      last_rows.push_back(static_cast<int64_t>(host.ids.size()) - 1);
    }
    const Batch batch = batch_.upload(host, ctx.stream);
    ctx.role = ProductRole::prefill;
    model_.forward(ctx, &batch);
    draw(ctx, batch, last_rows, texts.subspan(first, next - first), request);
  }
}

/// Generates one more token of each text; the cache holds all tokens but the last.
void Generator::run_last_tokens(Context& ctx, std::span<Text* const> texts, const GenerationRequest& request) {
  cache_.decoding = true;
  ctx.role = ProductRole::decoding;
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
  ctx.role = ProductRole::decoding;  // one row per text
  const Tensor drawn_from = logits_.rows(0, static_cast<int64_t>(rows.size()));
  model_.logits(ctx, &batch, rows, drawn_from);
  float* values = drawn_from.as<float>();
  if (!device_memory_is_host()) {
    host_logits_.resize(static_cast<size_t>(drawn_from.numel()));
    values = host_logits_.data();
    copy_to_host(values, drawn_from.data, drawn_from.bytes(), ctx.stream);
    ctx.stream.synchronize();
  }
  std::vector<int32_t> drawn;
  for (size_t i = 0; i < texts.size(); ++i) {
    const Text& text = *texts[i];
    const std::span<float> choices(values + i * static_cast<size_t>(room_.vocabulary_rows),
                                   static_cast<size_t>(request.vocabulary));
    penalize_repetition(choices, text.ids, request.sampling.repetition_penalty);
    const uint64_t key =
        random_key(request.seed, RandomPurpose::sampling, static_cast<uint64_t>(request.step), text.prompt);
    drawn.push_back(sample_token(choices, request.sampling, random_bits(key, 0, static_cast<uint64_t>(text.made()))));
  }
  if (request.agree) request.agree(drawn);
  for (size_t i = 0; i < texts.size(); ++i) append(*texts[i], drawn[i], request);
}

void Generator::append(Text& text, int32_t token, const GenerationRequest& request) const {
  const auto end = [&](GenerationEnd why) {
    text.running = false;
    text.end = why;
  };
  if (std::find(request.eos.begin(), request.eos.end(), token) != request.eos.end()) return end(GenerationEnd::eos);
  text.ids.push_back(token);
  if (request.on_token && !request.on_token(text.prompt, token)) return end(GenerationEnd::stopped);
  if (text.made() >= request.max_new_tokens) return end(GenerationEnd::length);
  if (!request.slides && static_cast<int64_t>(text.ids.size()) >= room_.context) end(GenerationEnd::context);
}

}  // namespace llmtrain
