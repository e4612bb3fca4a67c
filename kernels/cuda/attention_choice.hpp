#pragma once
// Whose attention a run asks for.

#include <cstdint>
#include <string>

namespace llmtrain::cuda {

/// LLMTRAIN_ATTENTION: auto (also when unset), own, or cudnn: on GPUs too where ours is thought to be faster, and an
/// error where it cannot be.
enum class AttentionChoice : uint8_t { automatic, own, cudnn };
/// UserError(command_line): another word.
AttentionChoice attention_choice(const char* text);
/// Of the environment.
AttentionChoice attention_choice();

/// Where cuDNN's attention is asked for, UserError(missing_input) that says why it cannot be; else nothing.
void refuse_missing_cudnn(AttentionChoice choice, const std::string& why);

}  // namespace llmtrain::cuda
