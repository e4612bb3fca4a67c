#pragma once
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "data/stream/data_stream.hpp"

namespace llmtrain {

/// Loads micro-batches one ahead of their use, on a thread of its own.
class BatchPrefetcher {
 public:
  explicit BatchPrefetcher(const DataStream& data);
  ~BatchPrefetcher();
  BatchPrefetcher(const BatchPrefetcher&) = delete;
  BatchPrefetcher& operator=(const BatchPrefetcher&) = delete;

  /// Starts loading; at most one is under way or waiting.
  void request(const MicroBatchPlan& plan);
  /// The batch of the last request; valid until the next call of take. Rethrows what loading threw.
  const HostBatch& take();

 private:
  void work();

  const DataStream& data_;
  std::mutex mutex_;
  std::condition_variable changed_;
  MicroBatchPlan wanted_;  ///< of the last request; the loading thread's own from asked_ to loaded_
  bool asked_ = false;
  bool loaded_ = false;
  bool stop_ = false;
  std::exception_ptr failure_;
  HostBatch back_, front_;
  std::thread thread_;
};

}  // namespace llmtrain
