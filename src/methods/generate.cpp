// The rules of run.task = generate.

#include "generate/prompt_files.hpp"
#include "methods/method.hpp"

namespace llmtrain {

namespace {

class Generation : public TaskRules {
 public:
  Generation() : TaskRules(Task::generate) {}

  bool needs(std::string_view key) const override { return key != "batch.sequence_length"; }
  int64_t max_default_length() const override { return length_of_prompts; }

  void check(DeckLoader& deck, Config& config) const override {
    require_model_path(deck, config);
    config.generate.resolve(deck, config.batch.sequence_length, config.batch.micro);
    check_windows(deck, config.model, config.generate.cache, "generate.cache");
    deck.check(config.data.encodes_any_text(), {"data.tokenizer"},
               "prompts need the tokenizer that the model was trained with: give its file or folder");
  }

  void examine(DeckLoader& deck, const Config& config) const override {
    if (!deck.sound({"generate.prompts"})) return;
    try {
      check_prompt_files(config.generate.prompts, config.data.row_limit);
    } catch (const UserError& error) {
      deck.fail("generate.prompts", error.what(), error.code());
    }
  }
};

}  // namespace

const TaskRules& generate_task() {
  static const Generation rules;
  return rules;
}

}  // namespace llmtrain
