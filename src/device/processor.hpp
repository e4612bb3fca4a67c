#pragma once
// What the host's processor can do. The environment variable ONEDNN_MAX_CPU_ISA lowers it, for oneDNN and for us alike.

#include <cstdint>

namespace llmtrain {

/// Sets of instructions on x86-64; each contains those before it.
enum class Instructions : uint8_t { avx2, avx512, avx512_bf16, amx };

bool processor_has(Instructions instructions);

}  // namespace llmtrain
