#pragma once
// External requests that this process stop; long loops check them between two work items.

#include <cstdint>
#include <functional>
#include <string>

namespace llmtrain {

/// Codes of stop requests, on which ranks agree by their maximum: a signal is its number, 0 is none.
enum StopCode : int { stop_by_file = 1000, stop_by_time = 1001 };

/// Records a signal; for signal handlers.
void request_stop(int code);
/// Code of the request, or 0. Any thread.
int requested_stop();

/// An additional source of requests, which returns a code or 0. Empty: none.
void set_stop_source(std::function<int()> source);
/// Returns the code of requested_stop() or of that source. Only on the thread that set the source.
int look_for_stop();

/// "SIGTERM", "the file STOP"
std::string stop_reason(int64_t code);

}  // namespace llmtrain
