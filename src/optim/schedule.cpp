#include "optim/schedule.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace llmtrain {
namespace {

using Name = ScheduleConfig::Name;

double ratio(int64_t part, int64_t whole) {
  return static_cast<double>(part) / static_cast<double>(std::max<int64_t>(1, whole));
}

/// Cosine with a half wave per 0.5 cycles, from 1 down to 0.
double cosine_wave(double progress, double cycles) {
  return std::max(0.0, 0.5 * (1 + std::cos(2 * std::numbers::pi * cycles * progress)));
}

double inverse_sqrt(const ScheduleConfig& schedule, int64_t after_warmup, int64_t warmup) {
  int64_t timescale = schedule.timescale;
  if (timescale == 0) timescale = warmup > 0 ? warmup : 10000;
  return 1 / std::sqrt(static_cast<double>(after_warmup + timescale) / static_cast<double>(timescale));
}

/// Factor 1, then the decay over the last steps, then 0. The decay is at most as long as the steps after the warm-up.
double stable_then_decay(const ScheduleConfig& schedule, int64_t step, int64_t warmup, int64_t total) {
  int64_t decay = schedule.decay_steps;
  if (decay == 0) decay = static_cast<int64_t>(std::ceil(schedule.decay_ratio * static_cast<double>(total)));
  decay = std::min(decay, std::max<int64_t>(0, total - warmup));
  const int64_t begin = total - decay;
  if (step < begin) return 1;
  if (step >= total) return 0;
  const double progress = ratio(step - begin, decay);
  switch (schedule.decay_type) {
    case ScheduleConfig::DecayType::linear:
      return 1 - progress;
    case ScheduleConfig::DecayType::cosine:
      return cosine_wave(progress, schedule.num_cycles);
    case ScheduleConfig::DecayType::one_minus_sqrt:
      return 1 - std::sqrt(progress);
  }
  return 0;
}

/// Factor on the peak after the warm-up, before a floor is applied.
double shape(const ScheduleConfig& schedule, int64_t step, int64_t warmup, int64_t total) {
  const double progress = ratio(step - warmup, total - warmup);
  switch (schedule.name) {
    case Name::constant:
    case Name::constant_with_warmup:
      return 1;
    case Name::linear:
      return std::max(0.0, ratio(total - step, total - warmup));
    case Name::cosine:
    case Name::cosine_with_min_lr:
      return cosine_wave(progress, schedule.num_cycles);
    case Name::cosine_with_restarts:
      return progress >= 1 ? 0 : cosine_wave(std::fmod(schedule.num_cycles * progress, 1.0), 0.5);
    case Name::polynomial:
      return step > total ? 0 : std::pow(1 - progress, schedule.power);
    case Name::inverse_sqrt:
      return inverse_sqrt(schedule, step - warmup, warmup);
    case Name::warmup_stable_decay:
      return stable_then_decay(schedule, step, warmup, total);
  }
  return 1;
}

/// Value of the shape 0, as a fraction of the peak.
double floor_factor(const ScheduleConfig& schedule) {
  if (schedule.learning_rate == 0) return 0;
  if (schedule.name == Name::polynomial) return schedule.lr_end / schedule.learning_rate;
  const bool floored = schedule.name == Name::cosine_with_min_lr || schedule.name == Name::warmup_stable_decay;
  return floored ? schedule.min_learning_rate / schedule.learning_rate : 0;
}

}  // namespace

int64_t warmup_steps(const ScheduleConfig& schedule, int64_t total_steps) {
  if (schedule.name == Name::constant) return 0;
  if (schedule.warmup_ratio == 0) return schedule.warmup_steps;
  return static_cast<int64_t>(std::ceil(schedule.warmup_ratio * static_cast<double>(total_steps)));
}

double learning_rate(const ScheduleConfig& schedule, int64_t step, int64_t total_steps) {
  const int64_t warmup = warmup_steps(schedule, total_steps);
  const double low = floor_factor(schedule);
  if (step < warmup) {
    const double rise = ratio(step, warmup);
    // warmup_stable_decay alone begins at its floor, as in Transformers.
    return schedule.learning_rate * (schedule.name == Name::warmup_stable_decay ? rise * (1 - low) + low : rise);
  }
  return schedule.learning_rate * (shape(schedule, step, warmup, total_steps) * (1 - low) + low);
}

}  // namespace llmtrain
