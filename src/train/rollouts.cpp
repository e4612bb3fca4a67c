#include "train/rollouts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/activity.hpp"
#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/number_text.hpp"
#include "core/profile.hpp"
#include "generate/growing_text.hpp"
#include "parallel/job/cancellable_work.hpp"
#include "parallel/job/launcher.hpp"
#include "train/run/job.hpp"

namespace llmtrain {

namespace {

constexpr const char* format_name = "llmtrain rollout 1";
constexpr double largest_reward = 1e30;
constexpr int64_t most_at_once = 64;          ///< sequences that a rank samples side by side
constexpr int64_t passes_between_polls = 16;  ///< of sampling, for requests to stop

}  // namespace

Rollouts::Rollouts(RolloutParts parts, DataStream prompts)
    : parts_(std::move(parts)),
      prompts_(std::move(prompts)),
      batches_(parts_.shape),
      first_state_(parts_.method->state()) {}

void Rollouts::plan(ModelSet& models, Arena& arena, DType compute, int ranks) {
  RoleModel& policy = models.at(Role::policy);
  const RolloutShape& shape = parts_.shape;
  GeneratorRoom room;
  room.vocabulary_rows = policy.shape().config.vocab_size;
  room.sequences = std::min({most_at_once, (shape.of_iteration() + ranks - 1) / ranks, batches_.max_rows()});
  room.context = shape.longest;
  room.records_logp = true;
  generator_.emplace(policy.actor(), room);
  generator_->plan(arena, compute);
  const int64_t rows = batches_.max_rows();
  batch_.plan(arena, rows, batches_.max_segments(), shape.kept_words);
  arena.add(statistics_.logp, MemoryCategory::activations, "rollout.logp", DType::f32, {rows});
}

Rollouts::Part Rollouts::part_of(const Communicator& communicator) const {
  const int64_t all = parts_.shape.of_iteration();
  return {all * communicator.rank() / communicator.size(), all * (communicator.rank() + 1) / communicator.size()};
}

bool Rollouts::make(const RolloutContext& run, int64_t step) {
  const SectionScope section(Section::sampling);
  const int64_t iteration = batches_.iteration_of(step);
  made_ = -1;
  RoleModel& policy = run.models.at(Role::policy);
  policy.params().finish_update();
  const double begin = now();
  ProfileSpan phase(SpanKind::phase, "sampling");
  std::optional<std::vector<RolloutSequence>> sequences = sample(run, iteration);
  if (!sequences) return false;
  const double sampled = now();
  batches_.set(iteration, std::move(*sequences));
  if (parts_.references) {
    phase.next("reference");
    RoleModel& reference = run.models.has(Role::reference) ? run.models.at(Role::reference) : policy;
    Context own{reference.params(), run.arena, run.runtime.stream()};
    own.adapters = false;
    score_tokens(run, reference.actor(), own, &RolloutSequence::reference_logp);
  }
  if (parts_.values) {
    phase.next("values");
    const Context ctx{policy.params(), run.arena, run.runtime.stream()};
    score_tokens(run, policy.critic(), ctx, &RolloutSequence::values);
  }
  phase.next("rewards");
  metric_values_ = reward(run);
  for (const std::vector<double>& more : {lengths(), parts_.method->estimate(batches_.sequences())}) {
    metric_values_.insert(metric_values_.end(), more.begin(), more.end());
  }
  made_ = iteration;
  int64_t tokens = 0;
  for (const RolloutSequence& sequence : batches_.sequences()) tokens += sequence.completion_length();
  run.print(
      fmt::format("rollout {}: {} completions, {} tokens, {:.3g} s ({} tokens/s), scored in {:.3g} s, reward {:.4g}",
                  iteration + 1, batches_.sequences().size(), count_text(tokens), sampled - begin,
                  count_text(static_cast<int64_t>(static_cast<double>(tokens) / std::max(sampled - begin, 1e-9))),
                  now() - sampled, metric_values_.front()));
  return true;
}

// Sampling

GenerationRequest Rollouts::request(const RolloutContext& run, int64_t iteration, Part part,
                                    std::span<const int64_t> prompts) {
  GenerationRequest request;
  for (int64_t s = part.begin; s < part.end; ++s) {
    prompts_.read_prompt(prompts[static_cast<size_t>(s / parts_.group_size)], request.prompts.emplace_back());
    request.numbers.push_back(s);
  }
  const RolloutConfig& sampling = parts_.sampling;
  request.sampling = {sampling.temperature, sampling.top_k, sampling.top_p};
  request.max_new_tokens = sampling.max_new_tokens;
  request.eos = stop_ids_;
  request.vocabulary = run.models.at(Role::policy).shape().tokens;  // as the softmax of updates
  request.seed = parts_.shape.seed;
  request.step = iteration;
  request.records_logp = true;
  request.threads = worker_threads(run.runtime.communicator());
  if (run.runtime.communicator().size() > 1) request.ranks = &run.runtime.communicator();
  return request;
}

std::optional<std::vector<RolloutSequence>> Rollouts::sample(const RolloutContext& run, int64_t iteration) {
  Communicator& communicator = run.runtime.communicator();
  const Part part = part_of(communicator);
  std::vector<int64_t> prompts;
  for (int64_t p = 0; p < prompts_of_iteration(); ++p) {
    prompts.push_back(prompts_.plan(iteration * prompts_of_iteration() + p).samples.front());
  }
  GenerationRequest wanted;
  throw_on_all_ranks(communicator, [&] { wanted = request(run, iteration, part, prompts); });
  std::vector<GrowingText> texts;
  if (!parts_.sampling.stop.empty()) {
    for (const auto& prompt : wanted.prompts) texts.emplace_back(*parts_.tokenizer, prompt, parts_.sampling.stop);
    wanted.on_token = [&](size_t p, int32_t token) { return texts[p].add(token); };
  }
  int64_t passes = 0;
  bool stopped = false;
  wanted.interrupted = [&] {
    if (++passes % passes_between_polls == 0) stopped = run.interrupted();
    return stopped;
  };
  RoleModel& policy = run.models.at(Role::policy);
  std::vector<Continuation> all;
  throw_on_all_ranks(communicator,
                     [&] { all = generator_->run(policy.params(), run.arena, run.runtime.stream(), wanted); });
  if (stopped) return std::nullopt;
  Message message;
  for (size_t i = 0; i < all.size(); ++i) {
    RolloutSequence sequence;
    sequence.prompt = prompts[static_cast<size_t>((part.begin + static_cast<int64_t>(i)) / parts_.group_size)];
    sequence.ids = std::move(wanted.prompts[i]);
    sequence.prompt_length = std::ssize(sequence.ids);
    sequence.ids.insert(sequence.ids.end(), all[i].tokens.begin(), all[i].tokens.end());
    if (all[i].end == GenerationEnd::eos) sequence.ids.push_back(all[i].eos);
    sequence.ended = all[i].end == GenerationEnd::eos || all[i].end == GenerationEnd::stopped;
    sequence.logp = std::move(all[i].logp);
    sequence.kept = std::move(all[i].kept);
    put(message, sequence);
  }
  std::vector<RolloutSequence> sequences;
  for (const std::string& bytes : communicator.gather_all(message.bytes())) {
    Message received(bytes);
    while (!received.at_end()) take(received, sequences.emplace_back());
  }
  return sequences;
}

// Scoring

void Rollouts::score_all(const RolloutContext& run, const Score& score, const Keep& keep) {
  Communicator& communicator = run.runtime.communicator();
  std::vector<RolloutSequence>& sequences = batches_.sequences();
  const int64_t all = std::ssize(sequences), micro = parts_.shape.micro, round = micro * communicator.size();
  Message message;
  for (int64_t first = 0; first < all; first += round) {
    report_progress();
    const int64_t begin = std::min(first + communicator.rank() * micro, all), end = std::min(begin + micro, all);
    const MicroBatchPlan plan = batches_.canonical(begin, end);
    const std::vector<std::vector<float>> values = score(begin < end ? &plan : nullptr);
    for (int64_t s = begin; s < end; ++s) {
      message.put(std::vector<int64_t>{s});
      message.put(values[static_cast<size_t>(s - begin)]);
    }
  }
  for (const std::string& bytes : communicator.gather_all(message.bytes())) {
    Message received(bytes);
    while (!received.at_end()) {
      std::vector<int64_t> number;
      std::vector<float> values;
      received.take(number);
      received.take(values);
      keep(sequences[static_cast<size_t>(number.at(0))], std::move(values));
    }
  }
}

void Rollouts::score_tokens(const RolloutContext& run, Model& model, Context ctx,
                            std::vector<float> RolloutSequence::*column) {
  ctx.role = ProductRole::prefill;
  ctx.temperature = temperature();
  const auto score = [&](const MicroBatchPlan* plan) {
    std::vector<std::vector<float>> values;
    if (plan == nullptr) {
      model.forward(ctx, nullptr);
      model.score(ctx, nullptr, {});
      return values;
    }
    batches_.load(*plan, host_);
    const Batch batch = batch_.upload(host_, ctx.stream);
    TokenStatistics statistics;
    statistics.logp = first_rows(statistics_.logp, batch.tokens);
    model.forward(ctx, &batch);
    model.score(ctx, &batch, statistics);
    std::vector<float> rows(static_cast<size_t>(batch.tokens));
    copy_to_host(rows.data(), statistics.logp.data, statistics.logp.bytes(), ctx.stream);
    ctx.stream.synchronize();
    auto row = rows.begin();
    for (const int64_t index : plan->samples) {
      const RolloutSequence& sequence = batches_.sequences()[static_cast<size_t>(index)];
      const auto end = row + sequence.rows();
      values.emplace_back(row + sequence.prompt_length - 1, end);
      row = end;
    }
    return values;
  };
  score_all(run, score,
            [&](RolloutSequence& sequence, std::vector<float> values) { sequence.*column = std::move(values); });
}

// Rewards

/// Tokens that the reward model reads. A text that is too long in its tokens loses its beginning.
std::vector<int32_t> Rollouts::judged_ids(const RolloutSequence& sequence) const {
  if (parts_.reward_tokenizer == nullptr) return sequence.ids;
  std::vector<int32_t> ids;
  parts_.reward_tokenizer->encode(parts_.tokenizer->decode(sequence.ids), ids);
  const int64_t beyond = std::ssize(ids) - parts_.shape.longest;
  if (beyond > 0) ids.erase(ids.begin(), ids.begin() + beyond);
  if (ids.empty()) ids.push_back(0);
  return ids;
}

std::vector<double> Rollouts::model_rewards(const RolloutContext& run) {
  RoleModel& judge = run.models.at(Role::reward);
  Context ctx{judge.params(), run.arena, run.runtime.stream()};
  ctx.role = ProductRole::prefill;
  std::vector<double> rewards;
  const auto score = [&](const MicroBatchPlan* plan) {
    std::vector<std::vector<float>> values;
    if (plan == nullptr) {
      judge.model().forward(ctx, nullptr);
      judge.model().score(ctx, nullptr, {});
      return values;
    }
    std::vector<std::vector<int32_t>> texts;
    for (const int64_t index : plan->samples) {
      texts.push_back(judged_ids(batches_.sequences()[static_cast<size_t>(index)]));
    }
    load_scored(texts, parts_.shape.longest, host_);
    const Batch batch = batch_.upload(host_, ctx.stream);
    TokenStatistics statistics;
    statistics.logp = first_rows(statistics_.logp, batch.tokens);
    judge.model().forward(ctx, &batch);
    judge.model().score(ctx, &batch, statistics);
    std::vector<float> rows(static_cast<size_t>(batch.tokens));
    copy_to_host(rows.data(), statistics.logp.data, statistics.logp.bytes(), ctx.stream);
    ctx.stream.synchronize();
    size_t end = 0;
    for (const std::vector<int32_t>& text : texts) {
      end += text.size();
      values.push_back({rows[end - 1]});
    }
    return values;
  };
  score_all(run, score, [&](RolloutSequence& sequence, const std::vector<float>& values) {
    sequence.reward = double{values.at(0)};
  });
  for (const RolloutSequence& sequence : batches_.sequences()) rewards.push_back(sequence.reward);
  return rewards;
}

std::vector<double> Rollouts::function_rewards(const RolloutContext& run, WeightedReward& reward) {
  Communicator& communicator = run.runtime.communicator();
  const Part part = part_of(communicator);
  std::vector<double> mine(static_cast<size_t>(part.end - part.begin));
  throw_on_all_ranks(communicator, [&] {
    std::vector<RewardRow> rows;
    std::vector<std::string> columns;
    columns.reserve(mine.size());
    for (int64_t s = part.begin; s < part.end; ++s) {
      const RolloutSequence& sequence = batches_.sequences()[static_cast<size_t>(s)];
      const auto prompt = sequence.ids.begin() + sequence.prompt_length;
      const bool eos = std::ranges::find(stop_ids_, sequence.ids.back()) != stop_ids_.end();
      RewardRow& row = rows.emplace_back();
      row.prompt = parts_.tokenizer->decode({sequence.ids.begin(), prompt});
      row.completion = parts_.tokenizer->decode({prompt, sequence.ids.end() - (eos ? 1 : 0)});
      row.completion_ids = sequence.completion();
      row.ended = sequence.ended;
      row.columns = columns.emplace_back(prompts_.row_text(sequence.prompt));
    }
    if (reward.function == nullptr) {
      reward.function = make_reward_function(reward.spec.value(), reward.name, parts_.reward_time_limit);
      for (int64_t sample = communicator.rank(); sample < prompts_.samples(); sample += communicator.size()) {
        report_progress();
        reward.function->check_columns(prompts_.row_text(sample));
      }
    }
    reward.function->score(rows, mine);
  });
  Message message;
  message.put(mine);
  std::vector<double> all;
  for (const std::string& bytes : communicator.gather_all(message.bytes())) {
    Message received(bytes);
    received.take(all);
  }
  return all;
}

std::vector<double> Rollouts::reward(const RolloutContext& run) {
  std::vector<RolloutSequence>& sequences = batches_.sequences();
  std::vector<double> sums(sequences.size(), 0), means;
  for (WeightedReward& reward : parts_.rewards) {
    const std::vector<double> values = reward.spec ? function_rewards(run, reward) : model_rewards(run);
    double sum = 0;
    for (size_t s = 0; s < values.size(); ++s) {
      sums[s] += reward.weight * values[s];
      sum += values[s];
    }
    means.push_back(sum / static_cast<double>(values.size()));
  }
  double sum = 0;
  for (size_t s = 0; s < sums.size(); ++s) {
    if (!(std::abs(sums[s]) <= largest_reward)) {  // true also for NaN
      throw UserError(ExitCode::diverged,
                      fmt::format("the reward of completion {} is {}: rewards and their weights must "
                                  "give numbers up to {}",
                                  s + 1, sums[s], largest_reward));
    }
    sequences[s].reward = sums[s];
    sum += sums[s];
  }
  means.insert(means.begin(), sum / static_cast<double>(sums.size()));
  return means;
}

/// Mean and extreme lengths, and the share of completions that were cut off.
std::vector<double> Rollouts::lengths() const {
  const std::vector<RolloutSequence>& sequences = batches_.sequences();
  const double count = static_cast<double>(sequences.size());
  double sum = 0, cut = 0, shortest = 0, longest = 0;
  for (const RolloutSequence& sequence : sequences) {
    const auto length = static_cast<double>(sequence.completion_length());
    sum += length;
    cut += sequence.ended ? 0 : 1;
    shortest = &sequence == sequences.data() ? length : std::min(shortest, length);
    longest = std::max(longest, length);
  }
  return {sum / count, shortest, longest, cut / count};
}

std::vector<RolloutMetric> Rollouts::metrics() const {
  std::vector<RolloutMetric> all = {{"reward", "reward"}};
  for (const WeightedReward& reward : parts_.rewards) all.push_back({"rewards/" + reward.name + "/mean"});
  for (const char* name :
       {"completions/mean_length", "completions/min_length", "completions/max_length", "completions/clipped_ratio"}) {
    all.push_back({name});
  }
  for (RolloutMetric& metric : parts_.method->metrics()) all.push_back(std::move(metric));
  return all;
}

// State

std::string Rollouts::save(int64_t step) const {
  const bool there = has(step);
  Message message;
  message.put(std::string(format_name));
  message.put(parts_.method->state());
  message.put(std::vector<int64_t>{there ? made_ : -1});
  if (!there) return message.bytes();
  message.put(metric_values_);
  for (const RolloutSequence& sequence : batches_.sequences()) put(message, sequence);
  return message.bytes();
}

void Rollouts::check(const RolloutSequence& sequence) const {
  const RolloutShape& shape = parts_.shape;
  const int64_t count = sequence.completion_length();
  const auto fits = [&](const auto& column, int64_t per_token) { return std::ssize(column) == count * per_token; };
  const bool sound = sequence.prompt >= 0 && sequence.prompt < prompts_.samples() && sequence.prompt_length >= 1 &&
                     count >= 1 && count <= shape.max_new_tokens && std::ssize(sequence.ids) <= shape.longest + 1 &&
                     std::ranges::all_of(sequence.ids, [&](int32_t id) { return id >= 0 && id < parts_.tokens; }) &&
                     fits(sequence.logp, 1) && fits(sequence.advantages, 1) &&
                     fits(sequence.values, parts_.values ? 1 : 0) && fits(sequence.returns, parts_.values ? 1 : 0) &&
                     fits(sequence.reference_logp, parts_.references ? 1 : 0) && fits(sequence.kept, shape.kept_words);
  LLMTRAIN_CHECK(sound, "a sequence does not fit the deck");
}

void Rollouts::reset() {
  made_ = -1;
  parts_.method->restore(first_state_);
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
      LLMTRAIN_CHECK(iteration.front() == batches_.iteration_of(step), "it is of another iteration");
      LLMTRAIN_CHECK(metric_values.size() == metrics().size(), "metrics are missing");
      LLMTRAIN_CHECK(std::ssize(sequences) == parts_.shape.of_iteration(), "the number of sequences is another one");
    }
    LLMTRAIN_CHECK(message.at_end(), "it goes on behind its end");
  } catch (const Error& error) {
    throw UserError(ExitCode::bad_content, fmt::format("{}: it is no rollout of this deck: {}", source, error.what()));
  }
  made_ = -1;
  parts_.method->restore(state);
  if (iteration.front() < 0) return;
  metric_values_ = std::move(metric_values);
  batches_.set(iteration.front(), std::move(sequences));
  made_ = iteration.front();
}

}  // namespace llmtrain
