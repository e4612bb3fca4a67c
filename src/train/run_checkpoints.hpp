#pragma once
// Checkpoints of a run: when they are saved, what they hold beside the parameters, and the way back.

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/manifest.hpp"
#include "train/parameter_checks.hpp"
#include "train/run/resume.hpp"
#include "train/run/stop_monitor.hpp"
#include "train/run/suspects.hpp"
#include "train/run_progress.hpp"
#include "train/saver.hpp"

namespace llmtrain {

/// Facts of the run that checkpoints record, and rules for saves.
struct CheckpointOptions {
  CheckpointConfig config;
  bool needs_best = false;                        ///< each better evaluation is saved at once
  std::string directory;                          ///< the run's
  std::string deck;                               ///< resolved
  std::string attention = {};                     ///< library that computes attention; empty: the built-in one
  std::string products = {};                      ///< product_library()
  std::vector<NamedContent> contents = {};        ///< identities of the deck's files, on rank 0
  std::map<std::string, std::string> texts = {};  ///< files of the initial model that every checkpoint stores
  bool replays = false;                           ///< replays vouch for checkpoints
  const ResumePoint* from = nullptr;              ///< checkpoint that the run resumes; null: a new run
};

class RunCheckpoints {
 public:
  /// Collective.
  RunCheckpoints(const RunContext& run, ParameterHash& hash, StopMonitor& stop_monitor, CheckpointOptions options);

  /// Restores parameters and progress. Returns the number of completed steps. Collective.
  int64_t restore(const ResumePoint& from);
  /// Starts a save. `since`: the time from which training waited for it. Collective.
  void save(int64_t completed, double since);
  /// Waits for a save in progress. Collective.
  void finish() { saver_->finish(); }
  /// Removes checkpoints of later steps. Collective.
  void discard_after(int64_t step) { saver_->discard_after(step); }
  /// A replay vouches for the newest checkpoint. Collective.
  void trust_saved();
  /// Sets later checkpoints aside than a replay has vouched for; the next job repeats the notices. Collective.
  void set_suspects_aside(const std::vector<NodeNotice>& notices);
  int64_t trusted_step() const { return trusted_.trusted; }  ///< -1: none
  /// The notices of the job before, which end here. Collective.
  std::vector<NodeNotice> take_notices();
  /// Waits until the parameters may change.
  void wait_before_update() { saver_->wait_before_update(); }

  // Requests to stop and to save. `step_seconds`: the longest step. Collective.
  struct Requests {
    int64_t stop, save;
  };
  /// Advances a save in progress, and agrees on requests.
  Requests agree_on_requests(double step_seconds);
  /// Saves on request during an evaluation or samples. Returns the reason to stop, or 0.
  int64_t stop_requested(int64_t completed, double step_seconds);
  /// Saves between two steps if a save is due. `ends`: the run ends after this step. Returns false if the state is not
  /// finite; the guard then demands a rollback where the save was due by the deck.
  bool save_if_due(int64_t completed, const Requests& requests, bool ends);

  /// True if every run of the deck has this checkpoint, whatever interrupts it.
  bool is_scheduled(int64_t completed) const;
  int64_t saved_step() const { return saved_step_; }  ///< newest save, or the checkpoint resumed from; -1: none
  int64_t best_saved() const { return best_saved_; }  ///< newest save after which no evaluation was better
  const std::string& start_path() const { return start_path_; }
  std::string folder() const { return options_.directory + "/checkpoints"; }

 private:
  void pin();
  void store_replay_state(const ReplayState& state);
  void restore_trusted();
  void restore_rollout(const ResumePoint& from);

  TrainingPlan& plan_;
  RunProgress& progress_;
  ParameterHash& hash_;
  Communicator& communicator_;
  Stream& stream_;
  RunLog& log_;
  StopMonitor& stop_monitor_;
  CheckpointOptions options_;
  PinnedBuffer host_copy_;  ///< replaces TrainingPlan::state_copy if device memory is not the host's
  std::optional<Saver> saver_;
  uint64_t data_ = 0;       ///< fingerprint of the data, on rank 0
  std::string start_path_;  ///< checkpoint of another run from which this run started
  int64_t saved_step_ = -1;
  bool saved_pending_evaluation_ = false;  ///< its evaluation was pending
  int64_t best_saved_ = -1;
  ReplayState trusted_;
};

}  // namespace llmtrain
