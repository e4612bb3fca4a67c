#pragma once
#include "data/progress.hpp"

namespace llmtrain {

/// Prints lines on the standard error stream, but those of progress, "what: 40 %".
ProgressReport terminal_report();

}  // namespace llmtrain
