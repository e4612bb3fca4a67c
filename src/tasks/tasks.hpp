#pragma once
// How a job of each task runs. What a task asks of a deck and of data is in src/methods.

#include <functional>
#include <memory>

#include "config/run_facts.hpp"
#include "core/arena.hpp"
#include "core/deck/task.hpp"
#include "data/dataset.hpp"
#include "methods/method.hpp"
#include "parallel/job/runtime.hpp"
#include "roles/model_set.hpp"
#include "tasks/estimate/estimate.hpp"
#include "tasks/estimate/memory_limit.hpp"

namespace llmtrain {

struct TrainingPlan;

/// A job. Functions with a Config take config(), as far as they need the facts.
struct Job {
  const Config& deck;
  Runtime& runtime;
  /// Reports errors of the files that the deck names, weights included if they will be read. Collective.
  std::function<void(bool weights)> examine;
  RunFacts facts;

  /// The deck with the facts that are known by now.
  Config config() const { return with_facts(deck, facts); }
};

/// Memory plan of one rank of a task. Nothing is allocated.
class RankPlan {
 public:
  virtual ~RankPlan() = default;
  virtual const Arena& arena() const = 0;
  virtual int64_t parameters() const = 0;
  virtual int64_t trained_parameters() const { return 0; }
  virtual int64_t state_bytes() const { return 0; }                 ///< size of a checkpoint, over all ranks
  virtual int64_t offloaded_bytes() const { return 0; }             ///< on a disk
  virtual int64_t cache_bytes() const { return 0; }                 ///< of a teacher's values in data.cache, at most
  virtual int64_t pinned_bytes() const { return 0; }                ///< pinned host memory beside a GPU
  virtual const TrainingPlan* training() const { return nullptr; }  ///< null if nothing is trained
  virtual double flops_per_token(int64_t /*sequence_length*/) const { return 0; }
  virtual int64_t host_bytes() const { return 0; }  ///< other host memory that grows with the deck
};

/// The plan of a task that trains nothing.
template <class PlannedTask>
class TaskPlan : public RankPlan {
 public:
  explicit TaskPlan(std::unique_ptr<PlannedTask> task) : task_(std::move(task)) {}
  const Arena& arena() const override { return task_->plan(); }
  int64_t parameters() const override { return task_->parameter_count(); }

 private:
  std::unique_ptr<PlannedTask> task_;
};

struct TaskEntry {
  /// Runs the task in its run directory. Collective; returns the exit code.
  int (*run)(Job& job);
  /// Loads the data, and decides the facts that follow from them; null if the task has no model. Collective.
  Dataset (*load)(const Config& deck, RunFacts& facts, Communicator& communicator, const ProgressReport& report);
  /// For --estimate; null if the task has no model.
  std::unique_ptr<RankPlan> (*plan)(const Config& config, const Dataset& data, const RankPosition& position);
  /// Reads what only the task knows, for --check, and adds facts and notes; null: nothing.
  void (*check)(const Config& config, RunFacts& facts);
  /// --measure; null if the task has no steps. Collective.
  Prediction (*measure)(Job& job, const Config& config, const Dataset& data);
};

const TaskEntry& find_task(Task task);

/// The deck's limits of memory.
MemoryLimits memory_limits(const Config& config);
/// Reads the run's chat templates: where the model's folder is gone, those that its checkpoint stores. Collective.
ChatSource load_chat(const Config& config, Communicator& communicator);
/// Loads the data of the deck, and decides the vocabulary by them. Collective.
Dataset load_data(const Config& deck, RunFacts& facts, Communicator& communicator, const ProgressReport& report);
/// The same by other rules than those of the deck's task.
Dataset load_data(const Config& deck, RunFacts& facts, const SampleRules& rules, Communicator& communicator,
                  const ProgressReport& report);

// Training (every task that trains).
int run_training(Job& job);
/// Reads the rows, and tries programs.
void check_training(const Config& config, RunFacts& facts);
std::unique_ptr<RankPlan> plan_training(const Config& config, const Dataset& data, const RankPosition& position);
Prediction measure_training(Job& job, const Config& config, const Dataset& data);
// evaluate
int run_evaluation(Job& job);
std::unique_ptr<RankPlan> plan_evaluation(const Config& config, const Dataset& data, const RankPosition& position);
// generate
int run_generation(Job& job);
/// Loads the tokenizer and the chat templates alone, and fits the length to the prompts. Collective.
Dataset load_prompt_tokenizer(const Config& deck, RunFacts& facts, Communicator& communicator,
                              const ProgressReport& report);
/// Reads every prompt, and notes how many lose their beginning. Throws UserError.
void check_generation(const Config& config, RunFacts& facts);
std::unique_ptr<RankPlan> plan_generation(const Config& config, const Dataset& data, const RankPosition& position);
/// The policy of a task that does not train, from a resolved deck with a model.path. `rows`: of its largest pass.
RoleSpec untrained_policy(const Config& config, const RankPosition& position, int64_t rows);
// tokenizer: all ranks train the tokenizer of data.tokenizer = bpe. The run's directory then has the files
// tokenizer.json and tokenizer_config.json that `llmtool tokenizer train` writes.
int run_tokenizer_training(Job& job);

}  // namespace llmtrain
