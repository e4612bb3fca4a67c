#pragma once
#include "tasks/command_line.hpp"
#include "tasks/tasks.hpp"

namespace llmtrain {

/// --estimate: prints the memory of a rank and of a node, and with --measure the time of the run. Collective; returns
/// the exit code.
int run_estimation(const CommandLine& command, Job& job);

}  // namespace llmtrain
