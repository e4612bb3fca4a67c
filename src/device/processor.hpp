#pragma once
// Instruction sets of the host's processor. The environment variable ONEDNN_MAX_CPU_ISA lowers them, for oneDNN and for
// this program alike.

#include <cstdint>

namespace llmtrain {

/// Instruction sets on x86-64; each contains those before it.
enum class Instructions : uint8_t { avx2, avx512, avx512_bf16, amx };

bool processor_has(Instructions instructions);

}  // namespace llmtrain
