#include "rollout/rollouts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "core/activity.hpp"
#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/kept_tokens.hpp"
#include "core/number_text.hpp"
#include "parallel/job/cancellable_work.hpp"
#include "rollout/reward_sums.hpp"
#include "rollout/sampling.hpp"

namespace llmtrain {

namespace {

constexpr const char* format_name = "llmtrain rollout 2";
constexpr size_t max_shown = 8;  ///< prompts of a bad step

}  // namespace

Rollouts::Rollouts(RolloutParts parts, DataStream prompts)
    : parts_(std::move(parts)),
      prompts_(std::move(prompts)),
      batches_(parts_.shape),
      first_state_(parts_.advantages->state()),
      rewards_(std::move(parts_.rewards), prompts_) {}

void Rollouts::plan_memory(ModelSet& models, Arena& arena, DType compute, int ranks) {
  generator_.emplace(models.at(Role::policy).actor(),
                     sampling_capacity(models, parts_.shape, parts_.sampling, ranks, batches_.max_rows()));
  generator_->plan(arena, compute);
  scorer_.plan(arena, batches_);
}

/// Copies of a sequence: its own; as sampled; in the message to other ranks, whose memory grows by doubling; as they
/// send it. Batches: two of updates, one of scoring.
int64_t Rollouts::host_bytes() const {
  constexpr int64_t copies = 5, batches = 3;
  return copies * parts_.shape.of_iteration() * parts_.shape.sequence_bytes() +
         batches * batches_.max_rows() * 4 * parts_.shape.kept_words;
}

Prepared Rollouts::prepare(const SamplingContext& run, int64_t step) {
  const SectionScope section(Section::sampling);
  const int64_t iteration = batches_.iteration_of(step);
  made_ = -1;
  RoleModel& policy = run.models.at(Role::policy);
  policy.params().finish_update();
  const double begin = now();
  ProfileSpan phase(SpanKind::phase, "sampling");
  std::vector<RolloutSequence> sequences;
  const Prepared outcome = sample(run, iteration, sequences);
  if (outcome != Prepared::ready) return outcome;
  const double sampled = now();
  batches_.set(iteration, std::move(sequences));
  if (!score(run, phase)) return Prepared::interrupted;
  made_ = iteration;
  int64_t tokens = 0;
  for (const RolloutSequence& sequence : batches_.sequences()) tokens += sequence.completion_length();
  run.print(fmt::format(
      "rollout {}: {} completions, {} tokens, {:.3g} s ({} tokens/s), scored in {:.3g} s, {}", iteration + 1,
      batches_.sequences().size(), count_text(tokens), sampled - begin,
      count_text(static_cast<int64_t>(static_cast<double>(tokens) / std::max(sampled - begin, 1e-9))), now() - sampled,
      std::isnan(metric_values_.front()) ? "no reward" : fmt::format("reward {:.4g}", metric_values_.front())));
  return Prepared::ready;
}

// Sampling

GenerationRequest Rollouts::request(const SamplingContext& run, int64_t iteration, std::span<const int64_t> prompts) {
  GenerationRequest request = sampling_request(run, parts_.sampling, parts_.shape.seed, iteration);
  for (const int64_t prompt : prompts) {
    std::vector<int32_t> ids;
    prompts_.read_prompt(prompt, ids);
    request.prompts.insert(request.prompts.end(), static_cast<size_t>(parts_.group_size), ids);
  }
  return request;
}

Prepared Rollouts::sample(const SamplingContext& run, int64_t iteration, std::vector<RolloutSequence>& sequences) {
  std::vector<int64_t> prompts;
  for (int64_t p = 0; p < prompts_of_iteration(); ++p) {
    prompts.push_back(prompts_.plan(iteration * prompts_of_iteration() + p).samples.front());
  }
  GenerationRequest wanted;
  throw_on_all_ranks(run.runtime.communicator(), [&] { wanted = request(run, iteration, prompts); });
  const Prepared outcome =
      sample_sequences(run, *generator_, std::move(wanted), {parts_.sampling.stop, parts_.tokenizer.get()}, sequences);
  for (size_t i = 0; i < sequences.size(); ++i) {
    sequences[i].prompt = prompts[i / static_cast<size_t>(parts_.group_size)];
  }
  return outcome;
}

// Scoring

bool Rollouts::score(const SamplingContext& run, ProfileSpan& phase) {
  if (parts_.references) {
    phase.next("reference");
    if (!score_by_reference(run)) return false;
  }
  if (parts_.values) {
    phase.next("values");
    if (!score_by_critic(run)) return false;
  }
  phase.next("rewards");
  std::optional<std::vector<double>> rewards = rewards_.score(run, batches_, scorer_);
  if (!rewards) return false;
  metric_values_ = std::move(*rewards);
  for (const std::vector<double>& more : {lengths(), parts_.advantages->estimate(batches_.sequences())}) {
    metric_values_.insert(metric_values_.end(), more.begin(), more.end());
  }
  return true;
}

Context Rollouts::scoring_context(const SamplingContext& run, RoleModel& model) const {
  Context ctx{model.params(), run.arena, run.runtime.stream()};
  ctx.role = ProductRole::prefill;
  ctx.temperature = temperature();
  ctx.rows = &run.rows;
  return ctx;
}

bool Rollouts::score_by_reference(const SamplingContext& run) {
  RoleModel& reference = run.models.at(run.models.has(Role::reference) ? Role::reference : Role::policy);
  Context ctx = scoring_context(run, reference);
  ctx.adapters = false;
  const auto compute = [&](const Batch* batch, const Tensor& logp) {
    llmtrain::score(reference.actor(), ctx, batch, {logp, {}, {}, {}});
  };
  return score_tokens(run, compute, &RolloutSequence::reference_logp);
}

bool Rollouts::score_by_critic(const SamplingContext& run) {
  RoleModel& policy = run.models.at(Role::policy);
  Context ctx = scoring_context(run, policy);
  const auto compute = [&](const Batch* batch, const Tensor& values) {
    TokenStatistics statistics{};
    statistics.value = values;
    run_shared(ctx, batch, statistics, [&](const Batch* rows, const TokenStatistics& own) {
      policy.actor_critic().estimate_values(ctx, rows, own.value);
    });
  };
  return score_tokens(run, compute, &RolloutSequence::values);
}

bool Rollouts::score_tokens(const SamplingContext& run, const std::function<void(const Batch*, const Tensor&)>& compute,
                            std::vector<float> RolloutSequence::*column) {
  ScoringPass pass;
  pass.load = [&](const MicroBatchPlan& plan, HostBatch& out) { batches_.load(plan, out); };
  pass.compute = compute;
  pass.count = [](const RolloutSequence& sequence) { return sequence.completion_length(); };
  pass.keep = [column](RolloutSequence& sequence, std::vector<float> values) { sequence.*column = std::move(values); };
  return scorer_.run(run, batches_, pass);
}

/// Mean and extreme lengths of all completions, and of those that were not cut off, as TRL reports them.
std::vector<double> Rollouts::lengths() const {
  struct Lengths {
    double count = 0, sum = 0, shortest = 0, longest = 0;
    void add(double length) {
      shortest = count == 0 ? length : std::min(shortest, length);
      longest = std::max(longest, length);
      sum += length;
      ++count;
    }
    double mean() const { return sum / std::max(count, 1.0); }
  } all, ended;
  for (const RolloutSequence& sequence : batches_.sequences()) {
    const auto length = static_cast<double>(sequence.completion_length());
    all.add(length);
    if (sequence.ended) ended.add(length);
  }
  return {all.mean(),   all.shortest,   all.longest,  1 - ended.count / all.count,
          ended.mean(), ended.shortest, ended.longest};
}

std::vector<int64_t> Rollouts::rows_of(std::span<const int64_t> samples) const {
  std::set<int64_t> prompts;
  for (const int64_t s : samples) prompts.insert(batches_.sequences()[static_cast<size_t>(s)].prompt);
  return {prompts.begin(), prompts.end()};
}

std::vector<std::string> Rollouts::places_of(std::span<const int64_t> rows) const {
  std::vector<std::string> places;
  for (const int64_t prompt : rows.first(std::min(rows.size(), max_shown))) {
    places.push_back(parts_.place_of(prompts_.row(prompt)));
  }
  return places;
}

std::vector<SourceMetric> Rollouts::metrics() const {
  std::vector<SourceMetric> all = rewards_.metrics();
  for (const char* name : {"completions/mean_length", "completions/min_length", "completions/max_length",
                           "completions/clipped_ratio", "completions/mean_terminated_length",
                           "completions/min_terminated_length", "completions/max_terminated_length"}) {
    all.push_back({name});
  }
  for (SourceMetric& metric : parts_.advantages->metrics()) all.push_back(std::move(metric));
  return all;
}

// State

std::string Rollouts::save(int64_t step) const {
  const bool there = is_prepared(step);
  Message message;
  message.put(std::string(format_name));
  message.put(parts_.advantages->state());
  message.put(std::vector<int64_t>{there ? made_ : -1});
  if (!there) return message.bytes();
  message.put(metric_values_);
  for (const RolloutSequence& sequence : batches_.sequences()) put(message, sequence);
  return message.bytes();
}

/// Returns true if there is a set of kept tokens for each token of the completion, where there are such sets.
bool Rollouts::has_kept(const RolloutSequence& sequence) const {
  std::vector<uint32_t> row(static_cast<size_t>(parts_.shape.kept_words));
  std::span<const uint32_t> stored(sequence.kept);
  for (int64_t t = 0; !row.empty() && t < sequence.completion_length(); ++t) take_kept(stored, row);
  return stored.empty();
}

void Rollouts::check(const RolloutSequence& sequence) const {
  const RolloutShape& shape = parts_.shape;
  const int64_t count = sequence.completion_length();
  const auto fits = [&](const auto& column, int64_t per_token) { return std::ssize(column) == count * per_token; };
  const bool sound = sequence.prompt >= 0 && sequence.prompt < prompts_.samples() && sequence.prompt_length >= 1 &&
                     count >= 1 && count <= shape.max_new_tokens && std::ssize(sequence.ids) <= shape.max_length + 1 &&
                     std::ranges::all_of(sequence.ids, [&](int32_t id) { return id >= 0 && id < parts_.tokens; }) &&
                     fits(sequence.logp, 1) && fits(sequence.advantages, 1) &&
                     fits(sequence.values, parts_.values ? 1 : 0) && fits(sequence.returns, parts_.values ? 1 : 0) &&
                     fits(sequence.reference_logp, parts_.references ? 1 : 0) && has_kept(sequence);
  LLMTRAIN_CHECK(sound, "a sequence does not fit the deck");
}

void Rollouts::reset() {
  made_ = -1;
  parts_.advantages->restore(first_state_);
}

void Rollouts::restore(const std::string& bytes, int64_t step, const std::string& source) {
  Message message(bytes);
  std::string name;
  std::vector<double> state, metric_values;
  std::vector<int64_t> iteration;
  std::vector<RolloutSequence> sequences;
  try {
    message.take(name);
    LLMTRAIN_CHECK(name == format_name, "another version wrote it");
    message.take(state);
    message.take(iteration);
    LLMTRAIN_CHECK(state.size() == first_state_.size() &&
                       std::ranges::all_of(state, [](double value) { return std::isfinite(value); }),
                   "the state of the method is damaged");
    LLMTRAIN_CHECK(iteration.size() == 1, "the iteration is missing");
    if (iteration.front() >= 0) {
      message.take(metric_values);
      while (!message.at_end()) {
        take(message, sequences.emplace_back());
        check(sequences.back());
      }
      LLMTRAIN_CHECK(iteration.front() == batches_.iteration_of(step), "it belongs to another iteration");
      const auto of_rewards = static_cast<std::ptrdiff_t>(rewards_.metrics().size());
      if (metric_values.size() + 1 == metrics().size() && rewards_.metrics().back().name == unscorable_metric) {
        metric_values.insert(metric_values.begin() + of_rewards - 1, 0);  // of a version that refused such completions
      }
      LLMTRAIN_CHECK(metric_values.size() == metrics().size(), "metrics are missing");
      LLMTRAIN_CHECK(std::ssize(sequences) == parts_.shape.of_iteration(), "its number of sequences differs");
    }
    LLMTRAIN_CHECK(message.at_end(), "it has trailing bytes");
  } catch (const Error& error) {
    throw UserError(ExitCode::bad_content, fmt::format("{}: not a rollout of this deck: {}", source, error.what()));
  }
  made_ = -1;
  parts_.advantages->restore(state);
  if (iteration.front() < 0) return;
  metric_values_ = std::move(metric_values);
  batches_.set(iteration.front(), std::move(sequences));
  made_ = iteration.front();
}

}  // namespace llmtrain
