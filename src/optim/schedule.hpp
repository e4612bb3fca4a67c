#pragma once
#include <cstdint>

#include "optim/schedule_config.hpp"

namespace llmtrain {

/// Learning rate of the step that follows `step` completed ones, of `total_steps`: with a warm-up the first step runs
/// at 0, as in Transformers' get_scheduler, whose formulas these are. A pure function; steps beyond the total are
/// defined.
double learning_rate(const ScheduleConfig& schedule, int64_t step, int64_t total_steps);

/// The warm-up in steps, whichever way the deck gives it.
int64_t warmup_steps(const ScheduleConfig& schedule, int64_t total_steps);

}  // namespace llmtrain
