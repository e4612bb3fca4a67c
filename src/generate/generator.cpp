#include "generate/generator.hpp"

#include <algorithm>
#include <exception>
#include <functional>
#include <optional>

#include "core/activity.hpp"
#include "core/error.hpp"
#include "core/profile.hpp"
#include "core/progress.hpp"
#include "device/device.hpp"
#include "generate/generated_text.hpp"
#include "generate/token_filters.hpp"

namespace llmtrain {

namespace {

/// The texts of a run of a Generator, their places in the cache, and their next passes.
class TextSchedule {
 public:
  /// `request` outlives it.
  TextSchedule(const GeneratorCapacity& capacity, const GenerationRequest& request);

  /// Texts of this rank, and ended ones and those of other ranks between them.
  std::span<GeneratedText> open() { return std::span(texts_).subspan(ended_, shared_ - ended_); }
  /// Gives waiting texts to ranks with free places, in the order of texts and ranks. Collective.
  void share(Communicator& ranks);
  /// Plans the next passes; none are left if they are empty. Throws UserError for a prompt that is too long.
  GenerationPasses next();
  /// Completed fraction of the new tokens; those that a text ends without count as done.
  double completed() const;
  /// Continuations of all prompts. Called once, at the end.
  std::vector<Continuation> take_results();

 private:
  GenerationPasses plan_passes(std::span<GeneratedText> texts) const;
  GenerationPasses plan_whole_texts(std::span<GeneratedText> texts) const;
  void begin(GeneratedText& text) const;
  bool admit(std::span<GeneratedText> texts, size_t index, std::vector<int64_t>& free) const;
  int64_t window_of(const GeneratedText& text) const;

  GeneratorCapacity capacity_;
  const GenerationRequest& request_;
  std::vector<GeneratedText> texts_;
  size_t ended_ = 0;   ///< texts at the begin that have ended
  size_t shared_ = 0;  ///< texts at the begin that have a rank
};

TextSchedule::TextSchedule(const GeneratorCapacity& capacity, const GenerationRequest& request)
    : capacity_(capacity), request_(request) {
  const int64_t beams = request.beams.beams;
  for (size_t p = 0; p < request.prompts.size(); ++p) {
    for (int64_t s = 0; s < std::max(beams, request.samples); ++s) {
      GeneratedText& text = texts_.emplace_back();
      text.prompt = p;
      text.sample = static_cast<size_t>(s);
      text.running = request.max_new_tokens > 0 && (beams == 1 || s == 0);
    }
  }
  if (request.ranks == nullptr) shared_ = texts_.size();
}

void TextSchedule::share(Communicator& ranks) {
  if (shared_ == texts_.size()) return;
  const auto beams = static_cast<size_t>(request_.beams.beams);
  const int64_t busy = std::ranges::count_if(open(), [beams](const GeneratedText& text) {
    return text.running && (beams == 1 || text.sample == 0);  // a search runs while its first beam does
  });
  std::vector<int64_t> free(static_cast<size_t>(ranks.size()));
  free[static_cast<size_t>(ranks.rank())] = capacity_.sequences / request_.beams.beams - busy;
  ranks.sum(free);
  for (size_t rank = 0; rank < free.size(); ++rank) {
    for (; free[rank] > 0 && shared_ < texts_.size(); --free[rank], shared_ += beams) {
      if (static_cast<int>(rank) != ranks.rank()) texts_[shared_].running = false;
    }
  }
}

GenerationPasses TextSchedule::next() {
  while (ended_ < shared_ && !texts_[ended_].running) ++ended_;
  return capacity_.cache ? plan_passes(open()) : plan_whole_texts(open());
}

double TextSchedule::completed() const {
  if (texts_.empty()) return 1;
  double done = 0;
  for (const GeneratedText& text : texts_) {
    const double made = text.ids.empty() ? 0 : static_cast<double>(text.made());
    done += text.running ? std::clamp(made / static_cast<double>(request_.max_new_tokens), 0.0, 1.0) : 1;
  }
  return done / static_cast<double>(texts_.size());
}

std::vector<Continuation> TextSchedule::take_results() {
  std::vector<Continuation> results;
  for (GeneratedText& text : texts_) {
    if (static_cast<int64_t>(text.sample) >= request_.samples) continue;
    results.push_back(request_.beams.beams > 1 ? std::move(text.result) : text.take_result());
  }
  return results;
}

/// Plans passes over all tokens of texts, without a cache: those with the fewest new tokens come before others.
GenerationPasses TextSchedule::plan_whole_texts(std::span<GeneratedText> texts) const {
  std::vector<GeneratedText*> waiting;
  for (GeneratedText& text : texts) {
    if (!text.running) continue;
    if (text.ids.empty()) begin(text);
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

void TextSchedule::begin(GeneratedText& text) const {
  text.ids = request_.read ? request_.read(text.prompt) : request_.prompts[text.prompt];
  LLMTRAIN_CHECK(!text.ids.empty(), "a continuation needs at least one token");
  text.prompt_length = text.ids.size();
  text.result.own = true;
}

/// Gives a text that waits its place, and one to each further beam. Returns false if there is none.
bool TextSchedule::admit(std::span<GeneratedText> texts, size_t index, std::vector<int64_t>& free) const {
  const auto wanted = static_cast<size_t>(request_.beams.beams);
  if (free.size() < wanted) return false;
  for (size_t b = 0; b < wanted; ++b) {
    GeneratedText& text = texts[index + b];
    text.slot = free.back();
    free.pop_back();
    begin(text);
  }
  GeneratedText& text = texts[index];
  window_of(text);  // refuses a prompt that is too long
  if (wanted > 1) {
    const int64_t most = std::max<int64_t>(1, capacity_.context - std::ssize(text.ids));
    text.search = std::make_unique<BeamSearch>(request_.beams, request_.eos, std::min(request_.max_new_tokens, most));
  }
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

void append_row(HostBatch& host, int32_t id, int64_t position, int64_t slot) {
  host.ids.push_back(id);
  host.positions.push_back(static_cast<int32_t>(position));
  host.targets.push_back(ignore_target);
  host.loss_weights.push_back(0);
  host.sequence_ids.push_back(slot);
  host.sequence_offsets.push_back(static_cast<int32_t>(position));
}

GeneratorCapacity capacity_with(const Model& model, GeneratorCapacity capacity) {
  LLMTRAIN_CHECK(capacity.sequences > 0 && capacity.context > 0, "generation needs room for a token");
  if (capacity.selects() && !model.can_cache()) {
    throw UserError(ExitCode::bad_content,
                    "a cache that keeps some of the keys does not suit this model, whose dynamic "
                    "rope changes them as the text grows");
  }
  capacity.cache = capacity.cache && model.can_cache();
  const int64_t planned = model.planned_rows();
  const bool in_pieces = capacity.cache && !capacity.selects();
  if (planned > 0 && planned < capacity.context) {
    (in_pieces ? capacity.prompt_tokens : capacity.context) = planned;
    capacity.sequences = std::min(capacity.sequences, planned);
  }
  const bool pieces = in_pieces && capacity.prompt_tokens > 0;
  capacity.prompt_tokens = pieces ? std::min(capacity.prompt_tokens, capacity.context) : capacity.context;
  return capacity;
}

}  // namespace

Generator::Generator(Model& model, const GeneratorCapacity& capacity)
    : model_(model),
      capacity_(capacity_with(model, capacity)),
      cache_(capacity_.policy, capacity_.context, capacity_.sequences),
      drawer_(model, capacity_) {}

void Generator::plan(Arena& arena, DType compute) {
  if (capacity_.cache) cache_.plan(arena, model_, compute, capacity_.kv_heads);
  batch_.plan(arena, rows(), rows(), 0, 1, 2 * capacity_.sequences);
  drawer_.plan(arena);
}

void Generator::check(const GenerationRequest& request) const {
  LLMTRAIN_CHECK(!(request.slides && capacity_.cache), "the cache of a text has its first tokens");
  LLMTRAIN_CHECK(!(request.agree && (request.gives_logp || request.records_logp)),
                 "log-probabilities are of a rank's own tokens");
  LLMTRAIN_CHECK(!(request.agree && request.ranks != nullptr),
                 "either all ranks have the same prompts or each has different ones");
  LLMTRAIN_CHECK(
      !request.records_logp || (capacity_.records_logp && !request.gives_logp &&
                                request.sampling.repetition_penalty == 1 && request.sampling.no_repeat_ngram == 0),
      "log-probabilities are not recorded here");
  const int64_t beams = request.beams.beams;
  if (beams == 1) return;
  LLMTRAIN_CHECK(!request.records_logp && !request.gives_logp && !request.on_token && !request.agree,
                 "a beam search records no log-probabilities and has no stop texts");
  LLMTRAIN_CHECK(request.samples <= beams && beams <= capacity_.sequences, "every beam needs a sequence of the cache");
  if (capacity_.cache) return;
  throw UserError(ExitCode::bad_content,
                  "beams share the keys of their text, which this model's dynamic rope changes as the text grows");
}

std::vector<Continuation> Generator::run(ParamStore& params, Arena& arena, Stream& stream,
                                         const GenerationRequest& request) {
  check(request);
  choose_graphs(params, request);
  Context ctx{params, arena, stream, request.seed, request.step, false};
  if (capacity_.cache) {
    cache_.keys().forget_norms();
    ctx.cache = &cache_.keys();
  }
  TextSchedule schedule(capacity_, request);
  std::optional<Progress> progress;
  if (!request.what.empty()) progress.emplace(request.what);
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
    if (request.ranks != nullptr) schedule.share(*request.ranks);
    GenerationPasses passes;
    attempt([&] { passes = schedule.next(); });
    const auto any = [](const std::vector<TextPortion>& portions) {
      return portions.empty() ? int64_t{0} : int64_t{1};
    };
    int64_t work[] = {any(passes.chunks), any(passes.prefill), any(passes.decode), failure ? 1 : 0};
    if (request.ranks != nullptr) request.ranks->maximum(work);
    if (work[3] != 0 || (work[0] == 0 && work[1] == 0 && work[2] == 0)) break;
    if (request.interrupted && request.interrupted()) break;
    report_progress();
    if (progress && Progress::is_displayed()) progress->set_fraction(schedule.completed());
    const auto read = [&](int64_t wanted, Pass pass, const std::vector<TextPortion>& portions) {
      if (wanted != 0) attempt([&] { run_pass(ctx, pass, portions, schedule.open(), request); });
    };
    read(work[0], Pass::chunk, passes.chunks);
    read(work[1], Pass::prefill, passes.prefill);
    read(work[2], Pass::decode, passes.decode);
  }
  if (failure) std::rethrow_exception(failure);
  return request.on_end ? std::vector<Continuation>() : schedule.take_results();
}

/// Passes over prompts come first in a run: they gather weights, and compute what the cache keeps of these.
void Generator::choose_graphs(const ParamStore& params, const GenerationRequest& request) {
  const bool used = capacity_.graphs && model_.can_record() && Graph::available() && !capacity_.selects() &&
                    request.ranks == nullptr && params.units().policy().whole_weights &&
                    TokenDrawer::draws_on_device(request);
  const Recorded wanted{&params, filters_of(request.sampling), request.records_logp, request.vocabulary};
  if (!used) {
    graphs_.reset();
  } else if (!graphs_ || wanted != recorded_) {
    graphs_.emplace();
  }
  recorded_ = wanted;
}

/// Takes part in a pass of other ranks.
void Generator::run_idle(Context& ctx) {
  model_.forward(ctx, nullptr);
  model_.logits(ctx, nullptr, {}, {});
}

/// Gives texts that wait for the pass of another text over their common prompt its logits. Their keys follow it.
std::vector<Generator::Follower> Generator::follow_leaders(std::span<GeneratedText> texts, std::vector<Draw>& draws) {
  std::vector<Follower> followers;
  for (GeneratedText& text : texts) {
    if (text.running && text.slot < 0) break;
    if (text.leader == nullptr) continue;
    const auto led = std::ranges::find(draws, text.leader, &Draw::text);
    if (led == draws.end()) continue;
    followers.push_back({&text, text.leader});
    text.cached = text.leader->cached;
    draws.push_back({&text, led->row});
    text.leader = nullptr;
  }
  return followers;
}

/// Reads tokens of texts, and generates one more token of each text that has been read.
void Generator::run_pass(Context& ctx, Pass pass, std::span<const TextPortion> portions, std::span<GeneratedText> texts,
                         const GenerationRequest& request) {
  if (capacity_.cache) cache_.keys().decoding = pass != Pass::prefill;
  const bool decodes = pass == Pass::decode && !request.records_logp;
  ctx.role = decodes ? ProductRole::decoding : ProductRole::prefill;
  ProfileSpan phase(SpanKind::phase, pass == Pass::decode ? "decoding" : "prompts");
  if (portions.empty()) return run_idle(ctx);
  HostBatch host;
  host.segments.push_back(0);
  std::vector<int64_t> rows;
  std::vector<Draw> draws;
  for (const TextPortion& portion : portions) {
    GeneratedText& text = *portion.text;
    const int64_t skipped = capacity_.cache ? text.cached : std::ssize(text.ids) - portion.tokens;
    for (int64_t i = 0; i < portion.tokens; ++i) {
      const int64_t position = capacity_.cache ? skipped + i : i;
      append_row(host, text.ids[static_cast<size_t>(skipped + i)], position, text.slot);
    }
    host.segments.push_back(static_cast<int32_t>(host.ids.size()));
    if (capacity_.cache) text.cached += portion.tokens;
    if (capacity_.cache && text.left() > 0) continue;
    draws.push_back({&text, rows.size()});
    rows.push_back(static_cast<int64_t>(host.ids.size()) - 1);
  }
  if (capacity_.selects() && pass == Pass::prefill) cache_.set_budgets(portions, ctx.stream);
  std::vector<Follower> followers;
  if (pass != Pass::decode) followers = follow_leaders(texts, draws);
  const Batch batch = batch_.upload(host, ctx.stream, TokenDrawer::numbers(draws, request));
  const auto work = [&] {
    model_.forward(ctx, &batch);
    for (const auto& [text, leader] : followers) cache_.copy(text->slot, leader->slot, leader->cached, ctx.stream);
    drawer_.compute(ctx, batch, rows, batch_.numbers(), request);
  };
  if (pass == Pass::decode && graphs_ && Recorder::current() == nullptr) {  // a profile needs every kernel separately
    graphs_->run({batch.tokens}, ctx.stream, work);
  } else {
    work();
  }
  drawer_.take(ctx, std::ssize(rows), draws, request, cache_);
}

}  // namespace llmtrain
