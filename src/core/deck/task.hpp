#pragma once
// The list of tasks: what a job does (run.task). Sections and keys of the deck name the tasks that use them. To add a
// method, add a line here and a file in src/methods.

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "core/deck/named_enum.hpp"

namespace llmtrain {

/// Name of each task, what it reads, and what it does, for the help of run.task.
#define LLMTRAIN_TASKS(X)                                                                                    \
  X(pretrain, texts, "train a model to predict the next token")                                              \
  X(sft, conversations, "train it on the answers of instructions and conversations")                         \
  X(dft, conversations, "the same, each token's loss weighted with its probability")                         \
  X(distill, conversations, "learn the distributions of a teacher, by the tokens of conversations or texts") \
  X(dpo, preferences, "learn from preferences (dpo.loss; kto from labels)")                                  \
  X(reward, pairs, "train a reward model on pairs")                                                          \
  X(classify, labelled, "learn labels of texts, or of their words (classify)")                               \
  X(ppo, prompts, "learn from a reward model, with a critic")                                                \
  X(grpo, prompts, "learn from rewards of groups of completions")                                            \
  X(evaluate, evaluation,                                                                                    \
    "score the validation data with model.path (loss, perplexity, bits per byte, token accuracy)")           \
  X(generate, generation, "let it continue the prompts of generate.prompts")                                 \
  X(tokenizer, vocabulary,                                                                                   \
    "train the tokenizer of data.tokenizer = bpe on data.train, and write tokenizer.json to the run's folder")

#define LLMTRAIN_TASK(name, ...) name,
enum class Task : uint8_t { LLMTRAIN_TASKS(LLMTRAIN_TASK) };
#undef LLMTRAIN_TASK

#define LLMTRAIN_TASK(name, ...) std::string_view(#name),
template <>
inline constexpr auto enum_names<Task> = std::array{LLMTRAIN_TASKS(LLMTRAIN_TASK)};
#undef LLMTRAIN_TASK

/// Kinds of samples. Preferences are pairs of documents, or documents with a label.
enum class TaskSamples : uint8_t {
  texts,
  conversations,
  preferences,
  pairs,
  labelled,
  prompts,
  evaluation,
  generation,
  vocabulary
};

#define LLMTRAIN_TASK(name, samples, ...) TaskSamples::samples,
constexpr TaskSamples samples_of(Task task) {
  constexpr std::array all = {LLMTRAIN_TASKS(LLMTRAIN_TASK)};
  return all[static_cast<size_t>(task)];
}
#undef LLMTRAIN_TASK

class TaskSet {
 public:
  constexpr TaskSet(std::initializer_list<Task> tasks) {
    for (const Task task : tasks) bits_ |= 1u << static_cast<uint32_t>(task);
  }
  constexpr TaskSet operator|(TaskSet other) const { return TaskSet(bits_ | other.bits_); }
  constexpr bool contains(Task task) const { return (bits_ >> static_cast<uint32_t>(task) & 1u) != 0; }
  constexpr bool meets(TaskSet other) const { return (bits_ & other.bits_) != 0; }
  std::string text() const {  ///< "pretrain, evaluate"
    std::string names;
    for (size_t t = 0; t < enum_names<Task>.size(); ++t) {
      if (contains(static_cast<Task>(t))) names += (names.empty() ? "" : ", ") + std::string(enum_names<Task>[t]);
    }
    return names;
  }

 private:
  constexpr explicit TaskSet(uint32_t bits) : bits_(bits) {}
  uint32_t bits_ = 0;
};

/// Tasks that have these samples.
constexpr TaskSet tasks_with(TaskSamples samples) {
  TaskSet tasks{};
  for (size_t t = 0; t < enum_names<Task>.size(); ++t) {
    const Task task = static_cast<Task>(t);
    if (samples_of(task) == samples) tasks = tasks | TaskSet{task};
  }
  return tasks;
}

/// Tasks that learn from conversations.
inline constexpr TaskSet conversation_tasks = tasks_with(TaskSamples::conversations);
inline constexpr TaskSet preference_tasks = tasks_with(TaskSamples::preferences) | tasks_with(TaskSamples::pairs);
/// Tasks that learn from rewards of what the model writes.
inline constexpr TaskSet reinforcement_tasks = tasks_with(TaskSamples::prompts);
/// Tasks that learn labels.
inline constexpr TaskSet label_tasks = tasks_with(TaskSamples::labelled);
inline constexpr TaskSet training_tasks =
    tasks_with(TaskSamples::texts) | conversation_tasks | preference_tasks | label_tasks | reinforcement_tasks;
/// Tasks that read samples of data.train and data.validation.
inline constexpr TaskSet sample_tasks = training_tasks | tasks_with(TaskSamples::evaluation);
inline constexpr TaskSet model_tasks = sample_tasks | tasks_with(TaskSamples::generation);
/// Tasks that read rows of instruction data (data.format).
inline constexpr TaskSet instruction_tasks = conversation_tasks | tasks_with(TaskSamples::evaluation) |
                                             tasks_with(TaskSamples::generation) | preference_tasks | label_tasks |
                                             reinforcement_tasks;
/// Tasks that read text.
inline constexpr TaskSet text_tasks = sample_tasks | tasks_with(TaskSamples::vocabulary);
inline constexpr TaskSet all_tasks = model_tasks | text_tasks;

}  // namespace llmtrain
