#pragma once
// Asynchronous checkpoints: the state is copied to memory, a thread writes it, the ranks publish it together at the end
// of a later step, and a thread removes older checkpoints.

#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint/checkpoint_config.hpp"
#include "checkpoint/checkpoint_writer.hpp"
#include "checkpoint/snapshot.hpp"
#include "metrics/run_log.hpp"
#include "params/param_store.hpp"
#include "train/run/resume.hpp"

namespace llmtrain {

/// Writer of checkpoints, one save at a time. All calls but wait_before_update and written are collective.
class Saver {
 public:
  /// Assumed minimum write speed of a node, in bytes per second.
  static constexpr double slow_disk = 100e6;

  /// `from`: the checkpoint that the run resumes, or null. `buffer`: see Snapshot.
  Saver(const CheckpointConfig& config, std::string folder, ParamStore& store, Stream& stream,
        std::span<uint8_t> buffer, Communicator& communicator, RunLog& log, const ResumePoint* from);
  ~Saver();
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;

  /// Starts a save, after the end of a save in progress. `since`: time (core/clock.hpp) at which the caller began to
  /// work for this save, while training waited.
  void begin(const SaveRequest& request, double since);
  /// Waits until the parameters may change.
  void wait_before_update();
  /// True also while outdated checkpoints are removed.
  bool is_saving() const { return save_ != nullptr || removing_; }
  /// True if this rank has no background work.
  bool written() const { return done_.load(); }
  /// True if writing failed on this rank; waiting for the others is then useless.
  bool failed() const { return save_ != nullptr && written() && save_->failed(); }
  /// Starts the next stage of a save, or ends it; called when all ranks have done their background work.
  void advance();
  /// Waits for the writers, publishes, waits until outdated checkpoints are removed. UserError on all ranks if it
  /// failed.
  void finish();

  /// Duration of the newest save; before the first, an estimate for a slow disk.
  double seconds() const { return seconds_; }
  /// Checkpoints to keep; -1: none. The best one; the rollback target, and the best one at that time; the same of the
  /// newest one that a replay vouches for.
  struct Pinned {
    int64_t best = -1, target = -1, best_of_target = -1, trusted = -1, best_of_trusted = -1;
  };
  void set_pinned(const Pinned& pinned) { pinned_ = pinned; }
  /// Removes checkpoints of later steps after a rollback to this one. Collective, while no save is in progress.
  void discard_after(int64_t step);

 private:
  void start(const std::function<void()>& work);
  void join();
  int64_t bytes_of_all();
  void publish();
  void begin_removal();
  void end_removal();

  CheckpointConfig config_;
  std::string folder_;
  Communicator& communicator_;
  RunLog& log_;
  int64_t tensor_ranks_, expert_ranks_;
  Snapshot snapshot_;
  PinnedBuffer staging_;
  std::vector<int64_t> file_of_rank_;
  std::unique_ptr<CheckpointSave> save_;
  std::thread writer_;
  std::atomic<bool> done_ = true;
  bool removing_ = false;             ///< same on every rank; the first rank removes
  std::exception_ptr removal_error_;  ///< set before done_
  SaveRequest request_;
  std::set<int64_t> verified_, refused_;
  Pinned pinned_;
  int64_t resumed_ = -1;
  double began_ = 0, blocked_ = 0, held_ = 0, seconds_ = 0, removal_seconds_ = 0, removal_wait_ = 0;
};

}  // namespace llmtrain
