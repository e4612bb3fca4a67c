#pragma once
// The attention backend that a run requests.

#include <cstdint>
#include <string>

namespace llmtrain::cuda {

/// Values of LLMTRAIN_ATTENTION: auto (also when unset), own, or cudnn. cudnn uses the library also on GPUs where the
/// built-in attention is expected to be faster, and is an error if the library cannot be used.
enum class AttentionChoice : uint8_t { automatic, own, cudnn };
/// Parses a value. UserError(command_line) for any other word.
AttentionChoice attention_choice(const char* text);
/// Value of the environment variable.
AttentionChoice attention_choice();

/// If cuDNN's attention is required, throws UserError(missing_input) with the reason why it cannot be used.
void refuse_missing_cudnn(AttentionChoice choice, const std::string& why);

}  // namespace llmtrain::cuda
