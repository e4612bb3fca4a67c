// Classification: labels of texts, or of their words, by a head with an output for each label.

#include <fmt/format.h>

#include "methods/method.hpp"

namespace llmtrain {

namespace {

class ClassificationMethod : public Method {
 public:
  ClassificationMethod() : Method(Task::classify) {}

  std::optional<ModelConfig::Head> head(const Config& config) const override {
    return config.classify.kind == ClassifyConfig::Kind::token ? ModelConfig::Head::token_score
                                                               : ModelConfig::Head::score;
  }
  void check(DeckLoader& deck, Config& config) const override {
    const bool words = config.classify.kind == ClassifyConfig::Kind::token;
    const std::string_view format = words ? "token_classification" : "classification";
    deck.check(
        config.data.format == "auto" || config.data.format == format, {"data.format", "classify.kind"},
        fmt::format("rows of kind = {} are of format {}: remove the key", name_of(config.classify.kind), format));
  }
  std::unique_ptr<Objective> objective(const Config& config, const Dataset& data) const override {
    return make_classification(config.classify.problem, data.labels);
  }
};

}  // namespace

const TaskRules& classify_task() {
  static const ClassificationMethod method;
  return method;
}

}  // namespace llmtrain
