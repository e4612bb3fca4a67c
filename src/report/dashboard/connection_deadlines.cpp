#include "report/dashboard/connection_deadlines.hpp"

#include <sys/socket.h>

namespace llmtrain {

ConnectionDeadlines::~ConnectionDeadlines() {
  {
    const std::scoped_lock lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void ConnectionDeadlines::set(int socket, Clock::duration patience) {
  const std::scoped_lock lock(mutex_);
  deadlines_[socket] = Clock::now() + patience;
  if (deadlines_.size() == 1) wake_.notify_all();
}

void ConnectionDeadlines::forget(int socket) {
  const std::scoped_lock lock(mutex_);
  deadlines_.erase(socket);
}

void ConnectionDeadlines::work() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (deadlines_.empty()) {
      wake_.wait(lock);
    } else {
      wake_.wait_for(lock, std::chrono::milliseconds(500));
    }
    const Clock::time_point now = Clock::now();
    for (auto& [socket, deadline] : deadlines_) {
      if (deadline > now) continue;
      ::shutdown(socket, SHUT_RDWR);  // the server sees the end, and closes it
      deadline = Clock::time_point::max();
    }
  }
}

}  // namespace llmtrain
