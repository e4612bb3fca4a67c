#pragma once
// Watchers of a dashboard: connections that wait for events, and the thread that reads the runs for them. It reads
// files only while somebody watches, and waits for a slow file system without keeping others waiting.

#include <sys/types.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "report/dashboard/run_board.hpp"

struct MHD_Connection;

namespace llmtrain {

class EventHub {
 public:
  struct Watcher;

  /// Throws what RunBoard does.
  EventHub(const std::vector<std::string>& runs, std::chrono::milliseconds interval);
  ~EventHub();
  EventHub(const EventHub&) = delete;
  EventHub& operator=(const EventHub&) = delete;

  /// `followed`: numbers of runs, as in RunBoard::events(). `last_event`: what the browser sends as Last-Event-ID, or
  /// "".
  std::shared_ptr<Watcher> add(MHD_Connection* connection, std::vector<size_t> followed, std::string_view last_event);
  void remove(const std::shared_ptr<Watcher>& watcher);
  /// Copies up to `size` bytes and returns how many; 0: the connection is paused until there are more; -1: the hub
  /// stops.
  ssize_t read(Watcher& watcher, char* bytes, size_t size);

  /// Ends all streams: read() returns -1 from now on.
  void stop();

 private:
  void work();
  void send_events(std::unique_lock<std::mutex>& lock);
  std::string frame_for(const Watcher& watcher) const;

  RunBoard board_;           ///< of the thread, once it runs
  const std::string epoch_;  ///< of this hub: an earlier server's versions mean nothing
  const std::chrono::milliseconds interval_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::shared_ptr<Watcher>> watchers_;
  bool fresh_ = false;  ///< a watcher waits for its first events
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace llmtrain
