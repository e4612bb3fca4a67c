#pragma once
#include "data/progress.hpp"

namespace llmtrain {

/// Prints lines on the standard error stream. A line "what: 40 %" is a progress report: a terminal shows it as a bar,
/// other outputs omit it.
ProgressReport terminal_report();

}  // namespace llmtrain
