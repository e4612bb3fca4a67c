#pragma once
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "checkpoint/schema.hpp"
#include "checkpoint/state.hpp"
#include "params/param_store.hpp"

namespace llmtrain {

/// The state of one step for the writer: the last bytes of this rank (in the order of writing) come from a copy; those
/// that do not fit the copy come from the parameters themselves, which must not change before wait_for_live() has
/// returned.
class Snapshot : public StateSource {
 public:
  /// `copy`: host memory of bytes() or less.
  Snapshot(ParamStore& store, Stream& main, std::span<uint8_t> copy);

  /// Bytes that this rank saves; known once the store exists.
  static int64_t bytes(const ParamStore& store);

  int64_t bytes() const { return total_; }
  /// Copies the state. Main thread, no writer active.
  void take();

  Schema schema() const override { return schema_; }
  /// Writer thread.
  void read(int64_t unit, size_t plane, int64_t begin, int64_t count, void* out) const override;
  /// Declares that the writer no longer reads the parameters, because it has finished or failed.
  void release() const;
  /// Waits for release(). Any thread.
  void wait_for_live() const;

 private:
  int64_t position(int64_t unit, size_t plane, int64_t element) const;
  uint8_t* copied(int64_t position) const { return copy_.data() + (position - live_); }
  int64_t live_part(int64_t unit, size_t plane, int64_t begin, int64_t count) const;

  ParamStore& store_;
  Stream& main_;
  mutable Stream writer_;
  StoreState state_;  ///< read by the writer
  Event taken_;       ///< in `main`: end of the previous update, for which the writer must wait
  Schema schema_;
  std::vector<UnitPlanes> planes_;  ///< by unit
  /// Elements of a segment that this rank saves, and the position in bytes of the first one.
  struct Part {
    ShardBorders elements;
    int64_t position;
  };
  std::vector<std::vector<std::vector<Part>>> parts_;  ///< by plane, unit and segment
  int64_t total_ = 0;
  int64_t live_ = 0;  ///< bytes before the copy
  std::span<uint8_t> copy_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  mutable bool live_read_ = true;
};

}  // namespace llmtrain
