// Pre-training: the next token of texts.

#include "methods/method.hpp"

namespace llmtrain {

namespace {

class Pretraining : public Method {
 public:
  Pretraining() : Method(Task::pretrain) {}

  std::unique_ptr<Objective> objective(const Config& config, const Dataset& /*data*/) const override {
    return make_cross_entropy(config.objective);
  }
};

}  // namespace

const TaskRules& pretrain_task() {
  static const Pretraining method;
  return method;
}

}  // namespace llmtrain
