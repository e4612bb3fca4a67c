// The rules of run.task = tokenizer.

#include "methods/method.hpp"

namespace llmtrain {

const TaskRules& tokenizer_task() {
  static const TaskRules rules(Task::tokenizer);
  return rules;
}

}  // namespace llmtrain
