#include "core/stop_request.hpp"

#include <atomic>

namespace llmtrain {
namespace {

std::atomic<int> requested = 0;
static_assert(std::atomic<int>::is_always_lock_free, "handlers of signals need it");

}  // namespace

void request_stop(int signal) { requested = signal; }

int requested_stop() { return requested; }

}  // namespace llmtrain
