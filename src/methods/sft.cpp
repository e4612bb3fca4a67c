// Supervised fine-tuning: the next token of the answers in conversations, or of texts.

#include "methods/method.hpp"

namespace llmtrain {

namespace {

class Finetuning : public Method {
 public:
  Finetuning() : Method(Task::sft) {}

  std::unique_ptr<Objective> objective(const Config& config, const Dataset& /*data*/) const override {
    return make_cross_entropy(config.objective);
  }
};

}  // namespace

const TaskRules& sft_task() {
  static const Finetuning method;
  return method;
}

}  // namespace llmtrain
