// Loading of the data that a deck names.

#include <fmt/format.h>

#include "core/activity.hpp"
#include "data/tokenize/open_tokenizer.hpp"
#include "tasks/tasks.hpp"

namespace llmtrain {

ChatSource load_chat(const Config& config, Communicator& communicator) {
  if (!task_rules(config.run.task).data().instructions) return {config.chat, {}};
  std::string text;
  throw_on_all_ranks(communicator, [&] {
    if (communicator.rank() != 0) return;
    const ModelSource& source = config.source;
    const std::string& model = !source.fallback_checkpoint.empty() ? source.fallback_checkpoint
                               : !source.checkpoint.empty()        ? source.checkpoint
                                                                   : config.model.path;
    text = serialize(read_chat_files(config.chat.template_name, model,
                                     config.data.has_tokenizer_files() ? config.tokenizer_path() : ""));
  });
  communicator.broadcast(text);
  return {config.chat, parse_chat_files(text, stored_chat_name)};
}

namespace {

/// For evaluation.tasks without other data.
Dataset open_tokenizer_alone(const Config& config, const SampleRules& rules, Communicator& communicator) {
  Dataset data;
  data.rules = rules;
  throw_on_all_ranks(communicator, [&] {
    const std::string path = config.data.encodes_any_text() ? config.tokenizer_path() : "";
    if (path.empty()) {
      throw UserError(ExitCode::deck,
                      fmt::format("{}: {} has no tokenizer, which evaluation.tasks needs: name its tokenizer",
                                  config.provenance.where("data.tokenizer"), config.model.path));
    }
    data.tokenizer = open_tokenizer(path, {config.data.eos_token});
  });
  return data;
}

}  // namespace

Dataset load_data(const Config& deck, RunFacts& facts, Communicator& communicator, const ProgressReport& report) {
  return load_data(deck, facts, sample_rules(deck), communicator, report);
}

Dataset load_data(const Config& deck, RunFacts& facts, const SampleRules& rules, Communicator& communicator,
                  const ProgressReport& report) {
  const SectionScope section(Section::data);
  Dataset data = rules.train.empty()
                     ? open_tokenizer_alone(deck, rules, communicator)
                     : open_dataset(rules, deck.batch, communicator, report, load_chat(deck, communicator));
  data.tasks = read_task_files(deck.evaluation.tasks, communicator);
  if (facts.vocabulary == 0) facts.vocabulary = data.vocabulary_size;
  if (!data.labels.empty()) facts.labels = data.labels;
  if (!deck.model.path.empty() && data.tokenizer != nullptr && data.tokenizer->kind() == "char" &&
      !deck.provenance.given("data.tokenizer")) {
    const std::string what = fmt::format(
        "{}: {} has no tokenizer, so that every character of the text would be a token (data.tokenizer = "
        "char), whose ids the model does not know. Name the tokenizer that it was trained with",
        deck.provenance.where("data.tokenizer"), deck.model.path);
    if (rules.use != DataUse::any && rules.instructions) {
      throw_on_all_ranks(communicator, [&] { throw UserError(ExitCode::deck, what); });
    }
    facts.add_note(what);
  }
  if (!data.note.empty()) {
    facts.add_note(fmt::format("{}: {}", deck.provenance.where("data.tokenizer"), data.note));
  }
  if (facts.vocabulary < data.vocabulary_size) {
    throw_on_all_ranks(communicator, [&] {
      throw UserError(ExitCode::deck, fmt::format("{}: {}", deck.provenance.where("model.vocab_size"),
                                                  too_few_rows(facts.vocabulary, data.vocabulary_size)));
    });
  }
  return data;
}

}  // namespace llmtrain
