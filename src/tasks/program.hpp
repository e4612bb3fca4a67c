#pragma once
#include "parallel/job/runtime.hpp"
#include "tasks/command_line.hpp"

namespace llmtrain {

/// Runs a deck: checks it, estimates its job or runs its task. Collective; returns the exit code or throws.
int run_program(const CommandLine& command, Runtime& runtime);

}  // namespace llmtrain
