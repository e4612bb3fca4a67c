#pragma once
// Checkpoints while the training goes on: the state is copied to memory, a thread writes it, the ranks publish it
// together at the end of a later step, and a thread removes the older ones that need not be kept.

#include <atomic>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint/checkpoint_writer.hpp"
#include "metrics/run_log.hpp"
#include "params/param_store.hpp"
#include "train/config/checkpoint_config.hpp"
#include "train/run/resume.hpp"

namespace llmtrain {

/// The state of one step as the writer reads it: the end of this rank's elements (in the order of writing) from a copy,
/// what the copy has no room for from the parameters themselves, which must not change before
/// wait_for_live() has returned.
class Snapshot : public StateSource {
 public:
  /// `copy`: host memory of elements() or fewer.
  Snapshot(ParamStore& store, Stream& main, std::span<float> copy);

  /// fp32 numbers that this rank saves. Known as soon as the store is made.
  static int64_t elements(const ParamStore& store);

  int64_t bytes() const { return total_ * state_bytes; }
  /// Main thread, no writer active.
  void take();

  Schema schema() const override { return schema_; }
  /// Writer thread.
  void read(int64_t unit, StateKind kind, int64_t begin, int64_t count, float* out) const override;
  /// The writer reads no more of the parameters, because it has them or because it failed.
  void release() const;
  /// Waits until then. Any thread.
  void wait_for_live() const;

 private:
  int64_t position(int64_t unit, StateKind kind, int64_t element) const;

  ParamStore& store_;
  Stream& main_;
  mutable Stream writer_;
  Event taken_;  ///< in `main`: the update before, which the writer must not overtake
  Schema schema_;
  std::vector<int64_t> first_;  ///< position of each kind and unit's first element, plus the total
  int64_t total_ = 0;
  int64_t live_ = 0;
  std::span<float> copy_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  mutable bool live_read_ = true;
};

/// One save at a time. All calls but hold_update and written are collective.
class Saver {
 public:
  /// What a node writes at least, in bytes a second.
  static constexpr double slow_disk = 100e6;

  /// `from`: where the run goes on, or null. `buffer`: see Snapshot.
  Saver(const CheckpointConfig& config, std::string folder, ParamStore& store, Stream& stream, std::span<float> buffer,
        Communicator& communicator, RunLog& log, const ResumePoint* from);
  ~Saver();
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;

  /// Begins to save; first ends a save under way. `since`: when the caller began to work for this save
  /// (core/clock.hpp), for which training waited.
  void begin(const SaveRequest& request, double since);
  /// Before the parameters change.
  void hold_update();
  bool under_way() const { return save_ != nullptr || removing_; }
  /// This rank has done its part in the background, or there is none to do.
  bool written() const { return done_.load(); }
  /// Writing failed on this rank: there is no use in waiting for the others.
  bool failed() const { return save_ != nullptr && written() && save_->failed(); }
  /// When all ranks are through with what they do in the background: what comes next, at last the end.
  void advance();
  /// Waits for the writers, publishes, waits until what need not be kept is removed. UserError on all ranks if it
  /// failed.
  void finish();

  /// Of the newest save; before the first what one may take on a slow disk.
  double seconds() const { return seconds_; }
  /// Checkpoints that stay; -1: none. The best; the one that the run would go back to, and what was the best there.
  struct Pinned {
    int64_t best = -1, target = -1, best_of_target = -1;
  };
  void set_pinned(const Pinned& pinned) { pinned_ = pinned; }
  /// Removes checkpoints of later steps: the run has gone back to this one. Collective, while no save is under way.
  void forget_after(int64_t step);

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
  Snapshot snapshot_;
  PinnedBuffer staging_;
  std::vector<int64_t> file_of_rank_;
  std::unique_ptr<CheckpointSave> save_;
  std::thread writer_;
  std::atomic<bool> done_ = true;
  bool removing_ = false;             ///< on every rank; the first one does it
  std::exception_ptr removal_error_;  ///< set before done_
  SaveRequest request_;
  std::set<int64_t> verified_, refused_;
  Pinned pinned_;
  int64_t resumed_ = -1;
  double began_ = 0, blocked_ = 0, held_ = 0, seconds_ = 0, removal_seconds_ = 0, removal_wait_ = 0;
};

}  // namespace llmtrain
