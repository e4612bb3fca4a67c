#pragma once
#include "data/progress.hpp"

namespace llmtrain {

/// Lines on the standard error stream. "what: 40 %" is for people who wait: a bar in one line on a terminal, else
/// nothing.
ProgressReport terminal_report();

}  // namespace llmtrain
