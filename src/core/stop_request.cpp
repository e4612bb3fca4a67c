#include "core/stop_request.hpp"

#include <atomic>
#include <csignal>
#include <utility>

namespace llmtrain {
namespace {

std::atomic<int> requested = 0;
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler may only write a lock-free atomic");

std::function<int()>& source() {
  static std::function<int()> source;
  return source;
}

}  // namespace

void request_stop(int code) { requested = code; }

int requested_stop() { return requested; }

void set_stop_source(std::function<int()> asked) { source() = std::move(asked); }

int look_for_stop() {
  if (const int code = requested_stop(); code != 0) return code;
  return source() ? source()() : 0;
}

std::string stop_reason(int64_t code) {
  switch (code) {
    case stop_by_file:
      return "the file STOP";
    case stop_by_time:
      return "the time limit";
    case SIGTERM:
      return "SIGTERM";
    case SIGINT:
      return "SIGINT";
    case SIGUSR1:
      return "SIGUSR1";
    default:
      return "SIGUSR2";
  }
}

}  // namespace llmtrain
