#pragma once
#include <cstdint>

#include "optim/schedule_config.hpp"

namespace llmtrain {

/// Learning rate of the step that follows `step` completed ones, of `total_steps`: with a warm-up the first step runs
/// at 0, as in Transformers' get_scheduler, whose formulas these are. A pure function; it is defined for steps beyond
/// the total.
double learning_rate(const ScheduleConfig& schedule, int64_t step, int64_t total_steps);

/// Number of warm-up steps, from warmup_steps or warmup_ratio.
int64_t warmup_steps(const ScheduleConfig& schedule, int64_t total_steps);

}  // namespace llmtrain
