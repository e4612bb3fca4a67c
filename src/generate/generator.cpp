#include "generate/generator.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <optional>

#include "core/activity.hpp"
#include "core/error.hpp"
#include "core/progress.hpp"
#include "device/device.hpp"
#include "generate/generated_text.hpp"

namespace llmtrain {

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

Generator::Generator(Model& model, const GeneratorRoom& room) : model_(model), room_(room) {
  LLMTRAIN_CHECK(room.sequences > 0 && room.context > 0, "generation needs room for a token");
  room_.cache = room.cache && model.can_cache();
  if (!room_.cache && room.cache && room.policy.kind != CachePolicy::Kind::full) {
    throw UserError(ExitCode::bad_content,
                    "a cache that keeps some of the keys does not suit this model, whose dynamic "
                    "rope changes them as the text grows");
  }
  if (selects() && !device_memory_is_host()) {
    throw UserError(ExitCode::no_device, "generate.cache: h2o and window are not there for GPUs: use cache = full");
  }
  const bool pieces = room_.cache && room.prompt_tokens > 0 && !selects();
  room_.prompt_tokens = pieces ? std::min(room.prompt_tokens, room.context) : room.context;
}

int64_t Generator::rows() const { return std::max(room_.prompt_tokens, room_.sequences); }

void Generator::plan(Arena& arena, DType compute) {
  // One place more than the keys that are kept, for the next one.
  const int64_t places =
      selects() ? std::min(room_.context, room_.policy.budget(room_.context).keys + 1) : room_.context;
  if (room_.cache) model_.plan_cache(arena, cache_, compute, room_.sequences, places);
  if (selects()) {
    const int64_t sinks = room_.policy.kind == CachePolicy::Kind::window ? room_.policy.sinks : -1;
    selection_.plan(arena, std::ssize(cache_.layers), room_.sequences, room_.kv_heads, places, sinks);
  }
  batch_.plan(arena, rows(), rows());
  arena.add(logits_, MemoryCategory::activations, "generation.logits", DType::f32,
            {room_.sequences, room_.vocabulary_rows});
  if (!room_.records_logp) return;
  arena.add(targets_, MemoryCategory::activations, "generation.targets", DType::i32, {room_.sequences});
  arena.add(logp_, MemoryCategory::activations, "generation.logp", DType::f32, {room_.sequences});
  arena.add(kept_, MemoryCategory::activations, "generation.kept", DType::u32,
            {room_.sequences, (room_.vocabulary_rows + 31) / 32});
}

void Generator::check(const GenerationRequest& request) const {
  LLMTRAIN_CHECK(!(request.slides && room_.cache), "the cache of a text has its first tokens");
  LLMTRAIN_CHECK(!(request.agree && request.gives_logp), "log-probabilities are of a rank's own tokens");
  LLMTRAIN_CHECK(!(request.agree && request.ranks != nullptr), "ranks agree on tokens or have prompts of their own");
  LLMTRAIN_CHECK(!request.records_logp || (room_.records_logp && request.sampling.repetition_penalty == 1 &&
                                           request.sampling.no_repeat_ngram == 0),
                 "log-probabilities are not recorded here");
  const int64_t beams = request.beams.beams;
  if (beams == 1) return;
  LLMTRAIN_CHECK(!request.records_logp && !request.gives_logp && !request.on_token && !request.agree,
                 "the beams of a search have no log-probabilities and stop texts of their own");
  LLMTRAIN_CHECK(request.samples <= beams && beams <= room_.sequences, "every beam needs a place");
  if (room_.cache) return;
  throw UserError(ExitCode::bad_content,
                  "beams share the keys of their text, which this model's dynamic rope changes as the text grows");
}

std::vector<Generator::Text> Generator::make_texts(const GenerationRequest& request) const {
  const int64_t beams = request.beams.beams;
  std::vector<Text> texts;
  for (size_t p = 0; p < request.prompts.size(); ++p) {
    LLMTRAIN_CHECK(!request.prompts[p].empty(), "a continuation needs at least one token");
    for (int64_t s = 0; s < std::max(beams, request.samples); ++s) {
      Text& text = texts.emplace_back();
      text.prompt = p;
      text.sample = static_cast<size_t>(s);
      text.prompt_length = request.prompts[p].size();
      text.running = request.max_new_tokens > 0 && (beams == 1 || s == 0);
    }
    if (beams == 1) continue;
    const int64_t room = std::max<int64_t>(1, room_.context - std::ssize(request.prompts[p]));
    texts[texts.size() - static_cast<size_t>(beams)].search =
        std::make_unique<BeamSearch>(request.beams, request.eos, std::min(request.max_new_tokens, room));
  }
  return texts;
}

/// Fraction of the texts' new tokens; those that a text ends without count as done.
double Generator::completed(std::span<const Text> texts, int64_t max_new_tokens) {
  double done = 0;
  for (const Text& text : texts) {
    const auto added = static_cast<double>(std::ssize(text.ids) - static_cast<int64_t>(text.prompt_length));
    done += text.running ? std::clamp(added / static_cast<double>(max_new_tokens), 0.0, 1.0) : 1;
  }
  return done / static_cast<double>(texts.size());
}

std::vector<Continuation> Generator::run(ParamStore& params, Arena& arena, Stream& stream,
                                         const GenerationRequest& request) {
  check(request);
  Context ctx{params, arena, stream, request.seed, request.step, false};
  if (room_.cache) ctx.cache = &cache_;
  cache_.selection = selects() ? &selection_ : nullptr;
  std::vector<Text> texts = make_texts(request);
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
  std::optional<Progress> progress;
  if (!request.what.empty()) progress.emplace(request.what);
  size_t ended = 0;  // texts at the begin that have ended
  while (true) {
    while (ended < texts.size() && !texts[ended].running) ++ended;
    const std::span<Text> open = std::span(texts).subspan(ended);
    Passes passes;
    attempt([&] { passes = room_.cache ? plan_passes(open, request) : plan_whole_texts(open, request); });
    const auto any = [](const std::vector<Portion>& portions) { return portions.empty() ? int64_t{0} : int64_t{1}; };
    int64_t work[] = {any(passes.more), any(passes.first), any(passes.last), failure ? 1 : 0};
    if (request.ranks != nullptr) request.ranks->maximum(work);
    if (work[3] != 0 || (work[0] == 0 && work[1] == 0 && work[2] == 0)) break;
    if (request.interrupted && request.interrupted()) break;
    report_progress();
    if (progress && Progress::is_displayed()) progress->set_fraction(completed(texts, request.max_new_tokens));
    if (work[0] != 0) attempt([&] { run_pass(ctx, Pass::more, passes.more, open, request); });
    if (work[1] != 0) attempt([&] { run_pass(ctx, Pass::first, passes.first, open, request); });
    if (work[2] != 0) attempt([&] { run_pass(ctx, Pass::last, passes.last, open, request); });
  }
  if (failure) std::rethrow_exception(failure);
  std::vector<Continuation> results;
  if (request.on_end) return results;
  for (Text& text : texts) {
    if (static_cast<int64_t>(text.sample) >= request.samples) continue;
    if (text.ids.empty()) text.prompt_length = 0;  // it got no place before the end
    results.push_back(request.beams.beams > 1 ? std::move(text.result) : text.take_result());
  }
  return results;
}

void Generator::copy_cache(int64_t to, int64_t from, int64_t tokens, Stream& stream) const {
  cache_.copy(to, from, std::min(tokens, cache_.layers.front().dim(1)), stream);
  if (selects()) selection_.copy(to, from, stream);
}

/// Passes over all tokens of texts, without a cache: those with the fewest new tokens come before others.
Generator::Passes Generator::plan_whole_texts(std::span<Text> texts, const GenerationRequest& request) const {
  std::vector<Text*> waiting;
  for (Text& text : texts) {
    if (!text.running) continue;
    if (text.ids.empty()) text.ids = request.prompts[text.prompt];
    waiting.push_back(&text);
  }
  std::ranges::stable_sort(waiting, std::less(), [](const Text* text) { return text->made(); });
  Passes passes;
  int64_t used = 0;
  for (Text* const text : waiting) {
    const int64_t window = window_of(*text, request);
    if (used + window > rows() || std::ssize(passes.first) == room_.sequences) break;
    used += window;
    text->slot = std::ssize(passes.first);
    passes.first.push_back({text, window});
  }
  return passes;
}

/// Gives a text that waits its place, and one to each further beam. Returns false if there is none.
bool Generator::admit(std::span<Text> texts, size_t index, std::vector<int64_t>& free,
                      const GenerationRequest& request) const {
  const auto wanted = static_cast<size_t>(request.beams.beams);
  if (free.size() < wanted) return false;
  for (size_t b = 0; b < wanted; ++b) {
    Text& text = texts[index + b];
    text.slot = free.back();
    free.pop_back();
    text.ids = request.prompts[text.prompt];
  }
  Text& text = texts[index];
  window_of(text, request);  // refuses a prompt that is too long
  if (text.sample == 0 || index == 0 || request.records_logp) return true;
  Text& before = texts[index - 1];
  Text* const leader = before.leader != nullptr ? before.leader : &before;
  if (leader->running && leader->made() == 0 && leader->slot >= 0) text.leader = leader;
  return true;
}

/// Gives waiting texts the free places, in their order. Passes over prompts come first.
Generator::Passes Generator::plan_passes(std::span<Text> texts, const GenerationRequest& request) const {
  std::vector<uint8_t> taken(static_cast<size_t>(room_.sequences), 0);
  for (size_t i = 0, seen = 0; i < texts.size() && seen < taken.size(); ++i) {
    const Text& text = texts[i];
    const bool of_beam = text.sample > 0 && request.beams.beams > 1 && (&text - text.sample)->running;
    if ((!text.running && !of_beam) || text.slot < 0) continue;
    taken[static_cast<size_t>(text.slot)] = 1;
    ++seen;
  }
  std::vector<int64_t> free;
  for (int64_t slot = room_.sequences; slot-- > 0;) {
    if (taken[static_cast<size_t>(slot)] == 0) free.push_back(slot);
  }
  Passes passes;
  int64_t first_room = rows(), more_room = rows();
  for (size_t i = 0; i < texts.size(); ++i) {
    Text& text = texts[i];
    if (!text.running) continue;
    if (text.slot < 0 && (first_room == 0 || !admit(texts, i, free, request))) break;  // no text overtakes another
    if (text.leader != nullptr) continue;
    // The texts beside a prompt decide where it is cut: its last piece is read as the others are, whatever its length.
    if (text.cached >= static_cast<int64_t>(text.prompt_length) && text.left() == 1) {
      passes.last.push_back({&text, 1});
      continue;
    }
    int64_t& left = text.cached > 0 ? more_room : first_room;
    const int64_t tokens = std::min(left, text.left());
    if (selects() && tokens < text.left()) {  // which keys are kept follows from the whole prompt
      first_room = 0;
      continue;
    }
    left -= tokens;
    if (tokens > 0) (text.cached > 0 ? passes.more : passes.first).push_back({&text, tokens});
  }
  if (!passes.first.empty() || !passes.more.empty()) passes.last.clear();
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

/// Sets how many keys the texts keep.
void Generator::set_budgets(std::span<const Portion> portions, Stream& stream) {
  for (const Portion& portion : portions) {
    const auto [keys, last] = room_.policy.budget(static_cast<int64_t>(portion.text->prompt_length));
    const std::array<int32_t, 2> budget = {static_cast<int32_t>(std::min(keys, room_.context)),
                                           static_cast<int32_t>(std::min(last, room_.context))};
    copy_to_device(selection_.budgets.rows(portion.text->slot, 1).data, budget.data(), sizeof(budget), stream);
  }
}

/// Reads tokens of texts, and generates one more token of each text that has been read.
void Generator::run_pass(Context& ctx, Pass pass, std::span<const Portion> portions, std::span<Text> texts,
                         const GenerationRequest& request) {
  cache_.decoding = pass != Pass::first;
  const bool decodes = pass == Pass::last && !request.records_logp;
  ctx.role = decodes ? ProductRole::decoding : ProductRole::prefill;
  if (portions.empty()) return run_idle(ctx);
  HostBatch host;
  host.segments.push_back(0);
  std::vector<int64_t> rows;
  std::vector<Draw> draws;
  for (const Portion& portion : portions) {
    Text& text = *portion.text;
    const int64_t skipped = room_.cache ? text.cached : std::ssize(text.ids) - portion.tokens;
    for (int64_t i = 0; i < portion.tokens; ++i) {
      const int64_t position = room_.cache ? skipped + i : i;
      append_row(host, text.ids[static_cast<size_t>(skipped + i)], position, text.slot);
    }
    host.segments.push_back(static_cast<int32_t>(host.ids.size()));
    if (room_.cache) text.cached += portion.tokens;
    if (room_.cache && text.left() > 0) continue;
    draws.push_back({&text, rows.size()});
    rows.push_back(static_cast<int64_t>(host.ids.size()) - 1);
  }
  if (selects() && pass == Pass::first) set_budgets(portions, ctx.stream);
  const Batch batch = batch_.upload(host, ctx.stream);
  model_.forward(ctx, &batch);
  if (pass != Pass::last) {
    for (Text& text : texts) {
      if (text.running && text.slot < 0) break;
      if (text.leader == nullptr) continue;
      const auto led = std::ranges::find(draws, text.leader, &Draw::text);
      if (led == draws.end()) continue;
      copy_cache(text.slot, text.leader->slot, text.leader->cached, ctx.stream);
      text.cached = text.leader->cached;
      draws.push_back({&text, led->row});
      text.leader = nullptr;
    }
  }
  draw(ctx, batch, rows, draws, request);
}

}  // namespace llmtrain
