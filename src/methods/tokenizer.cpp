// The rules of run.task = tokenizer.

#include "methods/method.hpp"

namespace llmtrain {

const TaskRules& tokenizer_task() {
  static const TaskRules rules({.task = Task::tokenizer, .instructions = false, .is_tokenizer = true});
  return rules;
}

}  // namespace llmtrain
