#include "generate/generator.hpp"

#include <algorithm>
#include <exception>
#include <optional>

#include "core/activity.hpp"
#include "core/error.hpp"
#include "core/progress.hpp"
#include "device/device.hpp"
#include "generate/text_schedule.hpp"

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

GeneratorCapacity capacity_with(const Model& model, GeneratorCapacity capacity) {
  LLMTRAIN_CHECK(capacity.sequences > 0 && capacity.context > 0, "generation needs room for a token");
  if (capacity.selects() && !model.can_cache()) {
    throw UserError(ExitCode::bad_content,
                    "a cache that keeps some of the keys does not suit this model, whose dynamic "
                    "rope changes them as the text grows");
  }
  capacity.cache = capacity.cache && model.can_cache();
  const bool pieces = capacity.cache && capacity.prompt_tokens > 0 && !capacity.selects();
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
  batch_.plan(arena, rows(), rows());
  drawer_.plan(arena);
}

void Generator::check(const GenerationRequest& request) const {
  LLMTRAIN_CHECK(!(request.slides && capacity_.cache), "the cache of a text has its first tokens");
  LLMTRAIN_CHECK(!(request.agree && request.gives_logp), "log-probabilities are of a rank's own tokens");
  LLMTRAIN_CHECK(!(request.agree && request.ranks != nullptr),
                 "either all ranks have the same prompts or each has different ones");
  LLMTRAIN_CHECK(!request.records_logp || (capacity_.records_logp && request.sampling.repetition_penalty == 1 &&
                                           request.sampling.no_repeat_ngram == 0),
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

/// Takes part in a pass of other ranks.
void Generator::run_idle(Context& ctx) {
  model_.forward(ctx, nullptr);
  model_.logits(ctx, nullptr, {}, {});
}

/// Gives texts that wait for the pass of another text over their common prompt its keys and logits.
void Generator::follow_leaders(std::span<GeneratedText> texts, std::vector<Draw>& draws, Stream& stream) const {
  for (GeneratedText& text : texts) {
    if (text.running && text.slot < 0) break;
    if (text.leader == nullptr) continue;
    const auto led = std::ranges::find(draws, text.leader, &Draw::text);
    if (led == draws.end()) continue;
    cache_.copy(text.slot, text.leader->slot, text.leader->cached, stream);
    text.cached = text.leader->cached;
    draws.push_back({&text, led->row});
    text.leader = nullptr;
  }
}

/// Reads tokens of texts, and generates one more token of each text that has been read.
void Generator::run_pass(Context& ctx, Pass pass, std::span<const TextPortion> portions, std::span<GeneratedText> texts,
                         const GenerationRequest& request) {
  if (capacity_.cache) cache_.keys().decoding = pass != Pass::prefill;
  const bool decodes = pass == Pass::decode && !request.records_logp;
  ctx.role = decodes ? ProductRole::decoding : ProductRole::prefill;
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
  const Batch batch = batch_.upload(host, ctx.stream);
  model_.forward(ctx, &batch);
  if (pass != Pass::decode) follow_leaders(texts, draws, ctx.stream);
  drawer_.draw(ctx, batch, rows, draws, request, cache_);
}

}  // namespace llmtrain
