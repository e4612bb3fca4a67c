#include "data/stream/batch_prefetcher.hpp"

#include <utility>

namespace llmtrain {

BatchPrefetcher::BatchPrefetcher(const BatchSource& data) : data_(data), thread_([this] { work(); }) {}

BatchPrefetcher::~BatchPrefetcher() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void BatchPrefetcher::request(const MicroBatchPlan& plan) {
  {
    const std::lock_guard lock(mutex_);
    LLMTRAIN_CHECK(!asked_ && !loaded_, "a micro-batch is already loading");
    wanted_ = plan;
    asked_ = true;
  }
  changed_.notify_all();
}

const HostBatch& BatchPrefetcher::take() {
  std::unique_lock lock(mutex_);
  LLMTRAIN_CHECK(asked_ || loaded_, "no micro-batch was requested");
  changed_.wait(lock, [this] { return loaded_; });
  loaded_ = false;
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  std::swap(front_, back_);
  return front_;
}

void BatchPrefetcher::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stop_ || (asked_ && !loaded_); });
    if (stop_) return;
    lock.unlock();
    std::exception_ptr failure;
    try {
      data_.load(wanted_, back_);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    failure_ = failure;
    asked_ = false;
    loaded_ = true;
    changed_.notify_all();
  }
}

}  // namespace llmtrain
