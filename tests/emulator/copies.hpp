#pragma once
#include <cstdint>

namespace llmtrain::emulator {

/// Number of calls that copy between host and device since the start of the program.
int64_t copies();

}  // namespace llmtrain::emulator
