// The rules of run.task = evaluate.

#include <fmt/format.h>

#include "methods/method.hpp"

namespace llmtrain {

namespace {

constexpr int64_t max_evaluated = 4096;  ///< tokens; the memory of a pass grows with them

class Evaluation : public TaskRules {
 public:
  Evaluation() : TaskRules(Task::evaluate) {}

  std::optional<ModelConfig::Head> head(const Config& /*config*/) const override { return std::nullopt; }
  bool needs(std::string_view key) const override { return key != "data.train" && key != "batch.sequence_length"; }
  int64_t max_default_length() const override { return max_evaluated; }
  bool compares(const DeckKeys::Key& key) const override {
    return TaskRules::compares(key) || key.section == "evaluation";
  }

  void check(DeckLoader& deck, Config& config) const override {
    const int64_t stride = config.evaluation.stride, length = config.batch.sequence_length;
    deck.check(stride == 0 || config.data.packing == DataConfig::Packing::wrap, {"evaluation.stride", "data.packing"},
               "windows are cut from a stream of tokens: they need data.packing = wrap");
    deck.check(stride <= length, {"evaluation.stride", "batch.sequence_length"},
               fmt::format("windows of batch.sequence_length = {} would skip tokens between them: use a smaller stride",
                           length));
    deck.check(stride == 0 || length >= 2, {"evaluation.stride", "batch.sequence_length"},
               "windows need batch.sequence_length = 2 or more: their last token is a target only");
    require_model_path(deck, config);
    deck.check(!config.model.classifies(), {"model.path"},
               config.model.path +
                   ": it is a model of labels, which llmtool classify applies, and evaluations of run.task = classify "
                   "measure; run.task = evaluate scores language models and reward models");
    if (!config.data.validation.empty()) {
      deck.set("data.train", Origin::unused, "data.validation is evaluated");
    } else if (!deck.given("data.train") && config.evaluation.tasks.empty() && deck.sound({"data.validation"})) {
      deck.fail("data.validation",
                "is required with run.task = evaluate (or give data.train, whose last validation_fraction is "
                "evaluated, or evaluation.tasks)");
    }
  }

  /// No text is skipped, and with evaluation.stride windows overlap.
  SampleRules sample_rules(const Config& config) const override {
    SampleRules rules = TaskRules::sample_rules(config).for_evaluation();
    rules.keep_rest = true;
    rules.stride = config.evaluation.stride;
    return rules;
  }
};

}  // namespace

const TaskRules& evaluate_task() {
  static const Evaluation rules;
  return rules;
}

}  // namespace llmtrain
