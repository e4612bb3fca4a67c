#pragma once
// Numbers of a run, as its log counts them: of the interval since the last console line, of this job and of the run.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "metrics/records.hpp"

namespace llmtrain {

/// Sums over consecutive steps.
struct StepInterval {
  int64_t steps = 0;
  int64_t tokens = 0;
  int64_t processed = 0;  ///< tokens of the passes
  int64_t left_out = 0;   ///< tokens of bad steps
  int64_t sequences = 0;
  double loss = 0;  ///< sum over good steps, weighted by tokens
  double seconds = 0;
  StepRecord::Phases phases;
  std::vector<double> grad_norms;  ///< never more than it has room for: steps allocate nothing

  /// Keeps the memory.
  void clear() {
    std::vector<double> room = std::move(grad_norms);
    room.clear();
    *this = {};
    grad_norms = std::move(room);
  }
  void add(const StepRecord& r);
  /// NaN if no token counts: there was no target, or no step was good.
  double mean_loss() const {
    return left_out == tokens ? std::numeric_limits<double>::quiet_NaN()
                              : loss / static_cast<double>(tokens - left_out);
  }
  double rate() const { return static_cast<double>(processed) / std::max(seconds, 1e-9); }
};

struct RunStatistics {
  void add(const StepRecord& record);
  void add(const EvaluationRecord& record);
  /// Adds the energy that this job has used so far, and the tokens of its passes.
  void add_energy(double of_job);
  double joules_per_token() const { return joules / static_cast<double>(std::max<int64_t>(joule_tokens, 1)); }

  /// Seconds of this job.
  double seconds() const;
  double earlier_seconds() const { return earlier_seconds_; }  ///< of training in earlier jobs
  /// Seconds of training in this job and earlier ones.
  double wall_time() const { return earlier_seconds_ + seconds(); }
  /// Estimates the time of the steps and evaluations that are left. `evaluation_steps`: duration of an evaluation in
  /// steps, until one was timed.
  double seconds_left(int64_t steps, int64_t evaluations_left, double evaluation_steps) const;

  /// Numbers that checkpoints keep.
  LogState save() const;
  void restore(const LogState& from);
  /// Returns to the numbers of a checkpoint; time and energy go on.
  void roll_back(const LogState& from);

  StepInterval interval;  ///< steps since the last console line
  StepInterval all;       ///< steps of this job
  StepRecord last_step;
  double last_loss = 0;  ///< loss of the last step with a target
  int64_t last_loss_step = 0;
  std::optional<EvaluationRecord> fresh;  ///< evaluation since the last console line
  double last_validation = 0;
  int64_t evaluated = 0;  ///< 1: last_validation is known
  double best = std::numeric_limits<double>::infinity();
  int64_t best_step = 0;
  double evaluation_seconds = 0;  ///< of this job, as the rest
  int64_t evaluations = 0;
  double sample_seconds = 0;
  double joules = 0;         ///< energy of the run, of all nodes, as far as they count it; 0: unknown
  int64_t joule_tokens = 0;  ///< tokens of the passes in that time

 private:
  using Clock = std::chrono::steady_clock;
  template <class Statistics, class See>
  static void each_number(Statistics& s, const See& see);
  template <class Statistics, class See>
  static void each_count(Statistics& s, const See& see);

  Clock::time_point start_ = Clock::now();
  double earlier_seconds_ = 0;            ///< time of earlier jobs
  double job_joules_ = 0;                 ///< of this job, in `joules`
  int64_t job_joule_tokens_ = 0;          ///< of this job, in `joule_tokens`
  Clock::time_point first_step_begin_;    ///< set by this job's first step
  double evaluation_seconds_before_ = 0;  ///< time of evaluations before that
};

}  // namespace llmtrain
