#pragma once
#include "parallel/job/runtime.hpp"
#include "train/run/command_line.hpp"

namespace llmtrain {

/// Runs a deck: check, estimate or train. Collective; returns the exit code or throws.
int run_program(const CommandLine& command, Runtime& runtime);

/// Text of --version: this program, the device it was built for, and its libraries.
std::string version_text();

}  // namespace llmtrain
