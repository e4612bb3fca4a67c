// Supervised fine-tuning: the next token of the answers in conversations, or of texts.

#include "methods/method.hpp"

namespace llmtrain {

const TaskRules& sft_task() {
  static const Method method(Task::sft);
  return method;
}

}  // namespace llmtrain
