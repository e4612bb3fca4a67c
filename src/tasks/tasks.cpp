#include "tasks/tasks.hpp"

#include <algorithm>
#include <array>

#include "core/error.hpp"

namespace llmtrain {

namespace {

constexpr std::array entries = {
    TaskEntry{Task::pretrain, run_training, load_data, plan_training, measure_training},
    TaskEntry{Task::sft, run_training, load_data, plan_training, measure_training},
    TaskEntry{Task::dpo, run_training, load_data, plan_training, measure_training},
    TaskEntry{Task::reward, run_training, load_data, plan_training, measure_training},
    TaskEntry{Task::ppo, run_training, load_data, plan_training, measure_training},
    TaskEntry{Task::grpo, run_training, load_data, plan_training, measure_training},
    TaskEntry{Task::evaluate, run_evaluation, load_evaluated_data, plan_evaluation, nullptr},
    TaskEntry{Task::generate, run_generation, load_prompt_tokenizer, plan_generation, nullptr},
    TaskEntry{Task::tokenizer, run_tokenizer_training, nullptr, nullptr, nullptr},
};

}  // namespace

MemoryLimits memory_limits(const Config& config) {
  const bool profiles = trains(config.run.task) && config.log.profile > 0;
  return {config.memory.limit, config.provenance.where("memory.limit"),
          profiles ? std::optional(compute_dtype(config.precision)) : std::nullopt};
}

const TaskEntry& find_task(Task task) {
  const auto found = std::ranges::find(entries, task, &TaskEntry::task);
  LLMTRAIN_CHECK(found != entries.end(), "every task has an entry");
  return *found;
}

}  // namespace llmtrain
