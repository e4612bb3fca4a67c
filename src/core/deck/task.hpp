#pragma once
// The names of tasks: what a job does (run.task); src/tasks has their list. Sections and keys of the deck name the
// tasks that use them.

#include <cstdint>
#include <initializer_list>
#include <string>

#include "core/deck/named_enum.hpp"

namespace llmtrain {

enum class Task : uint8_t { pretrain, sft, dpo, reward, ppo, grpo, evaluate, generate, tokenizer };

template <>
inline constexpr auto enum_names<Task> = name_list("pretrain", "sft", "dpo", "reward", "ppo", "grpo", "evaluate",
                                                   "generate", "tokenizer");

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

/// Tasks whose samples are pairs of documents (or documents with a label) and whose divisor counts them.
inline constexpr TaskSet preference_tasks{Task::dpo, Task::reward};
/// Tasks whose samples are prompts: they learn from rewards of what the model writes.
inline constexpr TaskSet reinforcement_tasks{Task::ppo, Task::grpo};
inline constexpr TaskSet training_tasks = TaskSet{Task::pretrain, Task::sft} | preference_tasks | reinforcement_tasks;
/// Tasks that read samples of data.train and data.validation.
inline constexpr TaskSet sample_tasks = training_tasks | TaskSet{Task::evaluate};
inline constexpr TaskSet model_tasks = sample_tasks | TaskSet{Task::generate};
/// Tasks that read rows of instruction data (data.format).
inline constexpr TaskSet instruction_tasks =
    TaskSet{Task::sft, Task::evaluate, Task::generate} | preference_tasks | reinforcement_tasks;
/// Tasks that read text.
inline constexpr TaskSet text_tasks = sample_tasks | TaskSet{Task::tokenizer};
inline constexpr TaskSet all_tasks = model_tasks | text_tasks;

inline bool trains(Task task) { return training_tasks.contains(task); }

}  // namespace llmtrain
