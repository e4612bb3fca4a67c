#include "tasks/tasks.hpp"

namespace llmtrain {

namespace {

const TaskEntry training_entry{run_training, load_data, plan_training, check_training, measure_training};
const TaskEntry evaluation_entry{run_evaluation, load_data, plan_evaluation, nullptr, nullptr};
const TaskEntry generation_entry{run_generation, load_prompt_tokenizer, plan_generation, check_generation, nullptr};
const TaskEntry tokenizer_entry{run_tokenizer_training, nullptr, nullptr, nullptr, nullptr};

}  // namespace

MemoryLimits memory_limits(const Config& config) {
  return {config.memory.limit, config.provenance.where("memory.limit"),
          config.log.profile > 0 ? std::optional(compute_dtype(config.precision.compute)) : std::nullopt};
}

const TaskEntry& find_task(Task task) {
  if (task == Task::evaluate) return evaluation_entry;
  if (task == Task::generate) return generation_entry;
  return task == Task::tokenizer ? tokenizer_entry : training_entry;
}

}  // namespace llmtrain
