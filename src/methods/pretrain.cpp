// Pre-training: the next token of texts.

#include "methods/method.hpp"

namespace llmtrain {

const TaskRules& pretrain_task() {
  static const Method method(Task::pretrain);
  return method;
}

}  // namespace llmtrain
