#pragma once
// run.task = generate: the ranks share the prompts; rank 0 writes the rows in the order of the prompts. A
// row is a function of the weights, the prompt, its number, the number of the sample and the deck: it does not depend
// on the ranks, the ZeRO stage or the prompts beside.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/config.hpp"
#include "core/progress.hpp"
#include "generate/generator.hpp"
#include "generate/prompt_files.hpp"
#include "generate/stop_texts.hpp"
#include "kernels/workspace.hpp"
#include "metrics/run_log.hpp"
#include "parallel/job/runtime.hpp"
#include "parallel/message.hpp"
#include "roles/model_set.hpp"
#include "tasks/generation_output.hpp"
#include "train/step_profile.hpp"

namespace llmtrain {

/// Counts of one job.
struct GenerationReport {
  int64_t rows = 0;      ///< new ones
  int64_t tokens = 0;    ///< new ones
  int64_t at_limit = 0;  ///< continuations that ended at generate.max_new_tokens
};

/// Conditions that end a continuation, beside its length.
struct StopRules {
  std::vector<int32_t> ids;
  std::vector<std::string> texts;
};

/// Rules for prompts of a resolved deck.
PromptRules prompt_rules(const Config& config);

class GenerationTask {
 public:
  /// `config` must outlive it.
  GenerationTask(const Config& config, RoleSpec policy, std::shared_ptr<const Tokenizer> tokenizer);

  const Arena& plan() const { return arena_; }
  int64_t parameter_count() const { return models_.at(Role::policy).params().units().parameters(); }
  /// Allocates and reads the weights. Collective.
  void start(Runtime& runtime, const Mesh& mesh, RunLog& log);
  /// Continues the prompts whose rows are not in the file. `output`: on rank 0, else null. Collective. Throws
  /// UserError(stopped) when it was asked to stop; what was done is in the file.
  GenerationReport run(Runtime& runtime, const Mesh& mesh, RunLog& log, const PromptFiles& prompts,
                       GenerationOutput* output, StopRules stop);

 private:
  /// Prompts that the ranks continue between two barriers.
  struct Round;
  struct Job {
    Runtime& runtime;
    const Mesh& mesh;
    RunLog& log;
    const PromptFiles& prompts;
    GenerationOutput* output;
    Progress& progress;
  };
  /// Continues prompts [first, end).
  void run_round(const Job& job, int64_t first, int64_t end);
  GenerationRequest request(const Round& round, const Job& job) const;
  std::string row_of(const Round& round, size_t c, const Continuation& continuation) const;
  void finish(Round& round, size_t c, const Continuation& continuation);
  void hand_over(const Job& job);
  void report_profile_if_due(const Job& job, bool the_end);

  const Config& config_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  ModelSet models_;
  std::optional<Generator> generator_;
  Arena arena_;
  std::optional<DeviceBuffer> memory_;
  std::optional<WorkspaceScope> workspace_;
  StopRules stop_;
  Message outbox_;  ///< rows that rank 0 does not have yet
  GenerationReport report_;
  int64_t earlier_ = 0;  ///< rows of earlier jobs
  double printed_ = 0;   ///< time of the last line of progress
  std::optional<StepProfile> profile_;
  int64_t passes_ = 0;
};

}  // namespace llmtrain
