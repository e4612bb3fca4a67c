#pragma once
// How a job of many ranks ends when one of them fails: together with one message where all know, else by MPI_Abort
// within seconds. State of the process (std::terminate and exit() need it), used by Runtime alone.

#include <functional>
#include <string>
#include <vector>

namespace llmtrain {

/// After MPI_Init and before MPI_Finalize, on every rank.
void begin_failure_handling();
void end_failure_handling();

/// One rank's text in, every rank's texts out, in rank order.
using GatherAll = std::function<std::vector<std::string>(const std::string&)>;
/// Over a communicator of the failure handling.
GatherAll gather_from_all();
/// See runtime.hpp.
void throw_on_all_ranks(const GatherAll& gather, const std::function<void()>& work);

/// The end of the job on a rank whose work is done: waits for the others and returns the exit code of all.
int finish_job(int code);
/// The same on a rank that met a UserError. When all ranks come to one of the two within seconds, equal messages are
/// printed once; otherwise the job is aborted with `code`.
int end_job(int code, const std::string& message);

/// Prints rank, host and message, and aborts the job.
[[noreturn]] void fail_job(const char* message);
/// Any thread, whatever the others are stuck in: prints `text` as it is and aborts the job.
[[noreturn]] void abort_with_report(int code, const std::string& text);

/// What must happen before the job is aborted, so that this process can end: called once, by a thread of its own, for
/// whose end the one that aborts waits a few seconds. Null: nothing.
void set_abort_action(void (*action)());

/// Leaving Runtime's scope by an exception that nobody caught must not wait for the other ranks.
void abort_if_unwinding();

}  // namespace llmtrain
