#pragma once
#include "data/progress.hpp"

namespace llmtrain {

/// Lines on the standard error stream; on a terminal "what: 40 %" is a bar in one line that moves.
ProgressReport terminal_report();

}  // namespace llmtrain
