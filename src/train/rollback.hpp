#pragma once
// Rollback of a run to a checkpoint after divergence.

#include <string>

#include "train/run_checkpoints.hpp"
#include "train/training_step.hpp"

namespace llmtrain {

/// Goes back to the checkpoint that the guard chooses, skipping the data that led to the divergence, and saves at once,
/// so that a resumed run skips the same data. Returns the number of completed steps there. UserError(diverged) if there
/// is no way back. `directory`: the run's. Collective.
int64_t roll_back(const RunContext& run, RunCheckpoints& checkpoints, TrainingStep& step, int64_t completed,
                  const std::string& directory);

/// Ends a job in which a replay found wrong ranks: names their nodes in the log, the metrics and excluded_nodes, and
/// sets suspect checkpoints aside. Throws UserError on all ranks: peer_failed, with which the job restarts without the
/// nodes; bad_content if it is unknown which ranks are wrong. Collective.
[[noreturn]] void throw_replay_error(const RunContext& run, RunCheckpoints& checkpoints, const ReplayFindings& findings,
                                     int64_t completed, const std::string& directory);

}  // namespace llmtrain
