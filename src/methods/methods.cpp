// The list of tasks' rules: one of each file here.

#include <fmt/format.h>

#include <array>
#include <utility>

#include "core/error.hpp"
#include "methods/method.hpp"

namespace llmtrain {

#define LLMTRAIN_DECLARE(name, ...) const TaskRules& name##_task();
LLMTRAIN_TASKS(LLMTRAIN_DECLARE)
#undef LLMTRAIN_DECLARE

const TaskRules& task_rules(Task task) {
#define LLMTRAIN_ENTRY(name, ...) &name##_task(),
  static const std::array all = {LLMTRAIN_TASKS(LLMTRAIN_ENTRY)};
#undef LLMTRAIN_ENTRY
  return *all[static_cast<size_t>(task)];
}

const Method& method_of(const Config& config) {
  const auto* method = dynamic_cast<const Method*>(&task_rules(config.run.task));
  LLMTRAIN_CHECK(method != nullptr, "the task does not train");
  return *method;
}

SampleRules sample_rules(const Config& config) { return task_rules(config.run.task).sample_rules(config); }

SampleRules TaskRules::sample_rules(const Config& config) const {
  SampleRules rules;
  static_cast<DataConfig&>(rules) = config.data;
  const CurriculumConfig& curriculum = config.curriculum;
  // A key that others leave without effect counts as not given.
  rules.tokenizer_given = config.provenance.given("data.tokenizer");
  rules.packing_given = config.provenance.given("data.packing");
  rules.overflow_given = config.provenance.given("data.overflow");
  rules.instructions = data_.instructions;
  rules.begins_like_tokenizer = data_.begins_with_bos;
  const bool labelled = data_.use == DataUse::labels;
  const bool reward_model = config.model.scores() && !config.model.classifies();
  rules.use = reward_model && !labelled ? DataUse::pairs : data_.use;
  if (labelled) rules.labels = config.classify.rules();
  rules.scores_documents = config.model.scores();
  rules.tokenizer_from = config.source.tokenizer_from;
  if (!config.model.path.empty()) {
    rules.embedding_rows = config.source.checkpoint.empty() ? config.model.vocab_size : config.source.tokens;
  }
  if (curriculum.draws_by(CurriculumConfig::Difficulty::Kind::column)) rules.difficulty = curriculum.difficulty.column;
  return rules;
}

void require_model_path(DeckLoader& deck, const Config& config) {
  if (deck.given("model.path")) return;
  deck.fail("model.path",
            fmt::format("is required with run.task = {}: give the folder of the model", name_of(config.run.task)));
}

std::unique_ptr<Objective> Method::objective(const Config& config, const Dataset& /*data*/) const {
  return make_cross_entropy(config.objective);
}

std::unique_ptr<Objective> Method::evaluator(const Config& config) const {
  return config.objective.has_terms() ? make_cross_entropy() : nullptr;
}

std::vector<RoleSpec> Method::roles(const RoleRequest& /*request*/, RoleSpec policy) const {
  std::vector<RoleSpec> roles;
  roles.push_back(std::move(policy));
  return roles;
}

}  // namespace llmtrain
