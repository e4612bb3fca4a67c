#pragma once
// Work items (pieces of files) divided among ranks and threads. Each rank takes a contiguous range, so that results
// joined in rank order are in item order, whatever the rank count. Ranks synchronize every half second: none waits long
// inside a collective while others work, and all know the progress.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "core/activity.hpp"
#include "core/parallel_for.hpp"
#include "parallel/communicator.hpp"
#include "parallel/job/cancellable_work.hpp"
#include "parallel/job/launcher.hpp"

namespace llmtrain {

struct ItemRange {
  int64_t begin;
  int64_t end;
};

inline ItemRange own_items(int64_t items, const Communicator& communicator) {
  return {items * communicator.rank() / communicator.size(), items * (communicator.rank() + 1) / communicator.size()};
}

inline constexpr const char* while_reading = "while the data were read";

/// Collective. process(item) -> Result runs on threads for the items [begin, end) of this rank, collect(item, result)
/// on the calling thread in item order. After a UserError on any rank, or a stop request, all ranks stop and throw. On
/// rank 0, `progress` receives the completed fraction of all ranks' items.
template <class Result, class Process, class Collect>
void share_work(Communicator& communicator, ItemRange own, const Process& process, const Collect& collect,
                const std::function<void(double)>& progress) {
  const int threads = worker_threads(communicator);
  const int64_t batch = int64_t{2} * threads;
  std::vector<Result> results(static_cast<size_t>(batch));
  int64_t next = own.begin;
  const auto work = [&](const Pause& pause) {
    while (next < own.end) {
      const size_t n = static_cast<size_t>(std::min(batch, own.end - next));
      parallel_for(n, threads, [&](size_t i) {
        results[i] = process(next + static_cast<int64_t>(i));
        report_progress();
      });
      for (size_t i = 0; i < n; ++i) collect(next + static_cast<int64_t>(i), results[i]);
      next += static_cast<int64_t>(n);
      pause();
    }
  };
  run_cancellable(communicator, while_reading, work, [&] {
    int64_t items[] = {next - own.begin, own.end - own.begin};
    communicator.sum(items);
    if (communicator.rank() == 0 && progress && items[1] > 0) {
      progress(static_cast<double>(items[0]) / static_cast<double>(items[1]));
    }
  });
}

/// Removes one of two BOS before a text that begins with its own.
inline void drop_second(int32_t bos, size_t begin, std::vector<int32_t>& ids) {
  const bool twice = begin + 1 < ids.size() && ids[begin] == bos && ids[begin + 1] == bos;
  if (twice) ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(begin));
}

}  // namespace llmtrain
