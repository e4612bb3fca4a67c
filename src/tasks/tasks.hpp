#pragma once
// How a job of each task runs. What a task asks of a deck and of data is in src/methods.

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "core/arena.hpp"
#include "core/deck/task.hpp"
#include "data/dataset.hpp"
#include "methods/method.hpp"
#include "parallel/job/runtime.hpp"
#include "roles/model_set.hpp"
#include "train/run/estimate.hpp"
#include "train/run/memory_limit.hpp"

namespace llmtrain {

/// A job whose deck is resolved.
struct Job {
  Config& config;
  Runtime& runtime;
  /// Reports errors of the files that the deck names, weights included if they will be read. Collective.
  std::function<void(bool weights)> examine;
};

/// Memory plan of one rank of a task. Nothing is allocated.
class RankPlan {
 public:
  virtual ~RankPlan() = default;
  virtual const Arena& arena() const = 0;
  virtual int64_t parameters() const = 0;
  virtual int64_t trained_parameters() const { return 0; }
  virtual int64_t state_bytes() const { return 0; }      ///< size of a checkpoint, over all ranks
  virtual int64_t offloaded_bytes() const { return 0; }  ///< on a disk
  virtual int64_t pinned_bytes() const { return 0; }     ///< pinned host memory beside a GPU
  virtual int64_t host_bytes() const { return 0; }       ///< other host memory that grows with the deck
};

struct TaskEntry {
  /// Runs the task in its run directory. Collective; returns the exit code.
  int (*run)(Job& job);
  // For --estimate; null if the task has no model.
  Dataset (*load)(Config& config, Communicator& communicator, const ProgressReport& report);
  std::unique_ptr<RankPlan> (*plan)(const Config& config, const Dataset& data, const RankPosition& position);
  /// Reads what only the task knows, for --check, and adds notes; null: nothing.
  void (*check)(Config& config);
  /// --measure; null if the task has no steps. Collective.
  Prediction (*measure)(Job& job, const Dataset& data);
};

const TaskEntry& find_task(Task task);

/// True if rank 0's device is fast at bf16. Collective.
bool agreed_fast_bf16(Communicator& communicator);
/// Prints the notes to stderr, since programs may read the requested output on stdout.
void print_notes(std::span<const std::string> notes);
/// The deck's limits of memory.
MemoryLimits memory_limits(const Config& config);
/// Reads the run's chat templates: where the model's folder is gone, those that its checkpoint stores. Collective.
ChatSource load_chat(const Config& config, Communicator& communicator);
/// Loads the data of the deck and sets the vocabulary by it. Collective.
Dataset load_data(Config& config, Communicator& communicator, const ProgressReport& report);
/// The same by other rules than those of the deck's task.
Dataset load_data(Config& config, const SampleRules& rules, Communicator& communicator, const ProgressReport& report);
/// Resolves an automatic precision.compute, and adds notes about keys that this device does not support.
void resolve_precision(Config& config, bool fast_bf16);

// Training (every task that trains).
int run_training(Job& job);
/// Reads the rows, and tries programs.
void check_training(Config& config);
std::unique_ptr<RankPlan> plan_training(const Config& config, const Dataset& data, const RankPosition& position);
Prediction measure_training(Job& job, const Dataset& data);
// evaluate
int run_evaluation(Job& job);
std::unique_ptr<RankPlan> plan_evaluation(const Config& config, const Dataset& data, const RankPosition& position);
// generate
int run_generation(Job& job);
/// Loads the tokenizer and the chat templates alone. Collective.
Dataset load_prompt_tokenizer(Config& config, Communicator& communicator, const ProgressReport& report);
/// Reads every prompt, and notes how many lose their beginning. Throws UserError.
void check_generation(Config& config);
std::unique_ptr<RankPlan> plan_generation(const Config& config, const Dataset& data, const RankPosition& position);
/// The policy of a task that does not train, from a resolved deck with a model.path. `rows`: of its largest pass.
RoleSpec untrained_policy(const Config& config, const RankPosition& position, int64_t rows);
// tokenizer: all ranks train the tokenizer of data.tokenizer = bpe. The run's directory then has the files
// tokenizer.json and tokenizer_config.json that `llmtool tokenizer train` writes.
int run_tokenizer_training(Job& job);

}  // namespace llmtrain
