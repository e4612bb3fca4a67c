#pragma once
#include <condition_variable>
#include <mutex>
#include <thread>

#include "data/stream/data_stream.hpp"

namespace llmtrain {

/// Loads micro-batches one ahead of their use, on a separate thread.
class BatchPrefetcher {
 public:
  explicit BatchPrefetcher(const BatchSource& data);
  ~BatchPrefetcher();
  BatchPrefetcher(const BatchPrefetcher&) = delete;
  BatchPrefetcher& operator=(const BatchPrefetcher&) = delete;

  /// Starts to load a micro-batch; at most one is loading or waiting.
  void request(const MicroBatchPlan& plan);
  /// Returns the batch of the last request; valid until the next call of take. Rethrows exceptions of the loading
  /// thread.
  const HostBatch& take();

 private:
  void work();

  const BatchSource& data_;
  std::mutex mutex_;
  std::condition_variable changed_;
  MicroBatchPlan wanted_;  ///< the last request; owned by the loading thread between asked_ and loaded_
  bool asked_ = false;
  bool loaded_ = false;
  bool stop_ = false;
  std::exception_ptr failure_;
  HostBatch back_, front_;
  std::thread thread_;
};

}  // namespace llmtrain
