#pragma once
// The wish of somebody outside that this process stops, as long loops ask for it between two pieces of work.

#include <cstdint>
#include <functional>
#include <string>

namespace llmtrain {

/// What can ask, as numbers that ranks agree on by their maximum: signals are theirs, 0 is nobody.
enum StopCode : int { stop_by_file = 1000, stop_by_time = 1001 };

/// For handlers of signals.
void request_stop(int code);
/// What asked, or 0. Any thread.
int requested_stop();

/// What else may ask; gives a code or 0. Empty: nothing.
void set_stop_source(std::function<int()> source);
/// The same as requested_stop() and of that source. On the thread that set it.
int look_for_stop();

/// "SIGTERM", "the file STOP"
std::string stop_reason(int64_t code);

}  // namespace llmtrain
