#include "kernels/cuda/attention_choice.hpp"

#include <cstdlib>

#include "core/error.hpp"

namespace llmtrain::cuda {

AttentionChoice attention_choice(const char* text) {
  const std::string word = text == nullptr ? "auto" : text;
  if (word == "auto") return AttentionChoice::automatic;
  if (word == "own") return AttentionChoice::own;
  if (word == "cudnn") return AttentionChoice::cudnn;
  throw UserError(ExitCode::command_line, "LLMTRAIN_ATTENTION is '" + word + "': it must be auto, own or cudnn");
}

AttentionChoice attention_choice() { return attention_choice(std::getenv("LLMTRAIN_ATTENTION")); }

void refuse_missing_cudnn(AttentionChoice choice, const std::string& why) {
  if (choice != AttentionChoice::cudnn) return;
  throw UserError(ExitCode::missing_input, "LLMTRAIN_ATTENTION is 'cudnn', but " + why + "; or set it to auto or own");
}

}  // namespace llmtrain::cuda
