#include "metrics/run_statistics.hpp"

namespace llmtrain {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

}  // namespace

void StepInterval::add(const StepRecord& r) {
  ++steps;
  if (grad_norms.size() < grad_norms.capacity()) grad_norms.push_back(r.grad_norm);
  tokens += r.tokens;
  processed += r.processed > 0 ? r.processed : r.tokens;
  sequences += r.sequences;
  if (r.bad_steps > 0) {
    left_out += r.tokens;
  } else if (r.tokens > 0) {
    loss += r.loss * static_cast<double>(r.tokens);
  }
  seconds += r.seconds;
  phases.data += r.phases.data;
  phases.forward_backward += r.phases.forward_backward;
  phases.reduction += r.phases.reduction;
  phases.optimizer += r.phases.optimizer;
}

void RunStatistics::add(const StepRecord& r) {
  if (all.steps == 0) {
    first_step_begin_ =
        Clock::now() - std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(r.seconds));
    evaluation_seconds_before_ = evaluation_seconds;
  }
  interval.add(r);
  all.add(r);
  last_step = r;
  if (r.tokens == 0) return;
  last_loss = r.loss;
  last_loss_step = r.step;
}

void RunStatistics::add(const EvaluationRecord& r) {
  if (r.tokens > 0) {
    fresh = r;
    last_validation = r.loss;
    evaluated = 1;
  }
  evaluation_seconds += r.seconds;
  ++evaluations;
  if (!r.best) return;
  best = r.loss;
  best_step = r.step;
}

void RunStatistics::add_energy(double of_job) {
  joules += of_job - std::exchange(job_joules_, of_job);
  joule_tokens += all.processed - std::exchange(job_joule_tokens_, all.processed);
}

double RunStatistics::seconds() const { return seconds_since(start_); }

/// Steps take as long as in the interval, evaluations as in this job's mean, and each step has its share of the other
/// time between steps so far: saving, samples, the log itself.
double RunStatistics::seconds_left(int64_t steps, int64_t evaluations_left, double evaluation_steps) const {
  const double of_step = interval.seconds / static_cast<double>(std::max<int64_t>(interval.steps, 1));
  const double of_evaluation =
      evaluations > 0 ? evaluation_seconds / static_cast<double>(evaluations) : evaluation_steps * of_step;
  const double evaluated_between = evaluation_seconds - evaluation_seconds_before_;
  const double between = std::max(seconds_since(first_step_begin_) - all.seconds - evaluated_between, 0.0);
  return static_cast<double>(steps) * (of_step + between / static_cast<double>(std::max<int64_t>(all.steps, 1))) +
         static_cast<double>(evaluations_left) * of_evaluation;
}

/// Calls see(name, field) for all fields that a checkpoint keeps.
template <class Statistics, class See>
void RunStatistics::each_number(Statistics& s, const See& see) {
  see("log_wall_time", s.earlier_seconds_);
  see("log_interval_loss", s.interval.loss);
  see("log_interval_seconds", s.interval.seconds);
  see("log_interval_data", s.interval.phases.data);
  see("log_interval_forward_backward", s.interval.phases.forward_backward);
  see("log_interval_reduction", s.interval.phases.reduction);
  see("log_interval_optimizer", s.interval.phases.optimizer);
  see("log_last_loss", s.last_loss);
  see("log_best_validation", s.best);
  see("log_last_validation", s.last_validation);
  see("log_joules", s.joules);
}

template <class Statistics, class See>
void RunStatistics::each_count(Statistics& s, const See& see) {
  see("log_interval_steps", s.interval.steps);
  see("log_interval_tokens", s.interval.tokens);
  see("log_interval_processed", s.interval.processed);
  see("log_interval_left_out", s.interval.left_out);
  see("log_interval_sequences", s.interval.sequences);
  see("log_last_loss_step", s.last_loss_step);
  see("log_best_step", s.best_step);
  see("log_evaluated", s.evaluated);
  see("log_joule_tokens", s.joule_tokens);
}

LogState RunStatistics::save() const {
  LogState state;
  each_number(*this, [&](const char* name, double field) { state.values[name] = field; });
  each_count(*this, [&](const char* name, int64_t field) { state.counters[name] = field; });
  state.values["log_wall_time"] = wall_time();
  return state;
}

void RunStatistics::restore(const LogState& from) {
  const auto take = [](const auto& map, const char* name, auto& field) {
    if (const auto found = map.find(name); found != map.end()) field = found->second;
  };
  each_number(*this, [&](const char* name, double& field) { take(from.values, name, field); });
  each_count(*this, [&](const char* name, int64_t& field) { take(from.counters, name, field); });
}

void RunStatistics::roll_back(const LogState& from) {
  const double wall = wall_time(), used = joules;
  const int64_t tokens = joule_tokens;
  interval.clear();
  fresh.reset();
  restore(from);
  earlier_seconds_ = wall - seconds();
  joules = used;
  joule_tokens = tokens;
}

}  // namespace llmtrain
