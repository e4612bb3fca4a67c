#pragma once
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

namespace llmtrain {

/// Ends connections that take too long to send a request or to take an answer, however steadily they drip.
class ConnectionDeadlines {
 public:
  using Clock = std::chrono::steady_clock;

  ConnectionDeadlines() : thread_([this] { work(); }) {}
  ~ConnectionDeadlines();
  ConnectionDeadlines(const ConnectionDeadlines&) = delete;
  ConnectionDeadlines& operator=(const ConnectionDeadlines&) = delete;

  /// Sets or replaces the deadline of a socket, which the caller forgets before it closes it.
  void set(int socket, Clock::duration patience);
  void forget(int socket);

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::map<int, Clock::time_point> deadlines_;  ///< by socket
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace llmtrain
