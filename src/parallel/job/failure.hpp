#pragma once
// End of a job of many ranks when one of them fails: all together with one message if all know the error, else by
// MPI_Abort within seconds. The state is process-wide (std::terminate and exit() need it); only Runtime uses it.

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace llmtrain {

// Election of the rank that ends the job: the first that creates a file with the exit code. The others, which the
// launcher or their own watchdog ends at the same time, then know that the message has been printed. The state is
// process-wide, and needs no allocation, since memory may be exhausted.

/// Sets the file for claims. Empty path: no file, and every claim is granted.
void set_claim_file(const std::string& path);
/// Returns true if this rank is the first.
bool claim_end(int code);
/// Exit code of the existing claim.
std::optional<int> claimed_code();

/// Starts failure handling: after MPI_Init and before MPI_Finalize, on every rank.
void begin_failure_handling();
void end_failure_handling();

/// How the ranks agree on failures: the sum of a value of each, and their texts, in rank order, on every rank.
struct Agreement {
  std::function<int64_t(int64_t)> sum;
  std::function<std::vector<std::string>(const std::string&)> gather_all;
};
/// Over a communicator of the failure handling.
Agreement agreement_of_job();
/// See runtime.hpp. Texts are gathered only after a failure.
void throw_on_all_ranks(const Agreement& ranks, const std::function<void()>& work);

/// Ends the job on a rank whose work is done: waits for the others and returns the exit code of all.
int finish_job(int code);
/// Ends the job on a rank that met a UserError. When all ranks call one of the two within seconds, equal messages are
/// printed once; otherwise the job is aborted with `code`.
int end_job(int code, const std::string& message);

/// Prints rank, host and message, and aborts the job.
[[noreturn]] void fail_job(const char* message);
/// Prints `text` unchanged and aborts the job. Callable from any thread, whatever the others are blocked in.
[[noreturn]] void abort_with_report(int code, const std::string& text);

/// Sets an action before an abort, without which this process cannot end. It is called once, on its own thread, for
/// whose end the aborting thread waits a few seconds. Null: none.
void set_abort_action(void (*action)());

/// Keeps the destructor of Runtime from waiting for other ranks during an uncaught exception.
void abort_if_unwinding();

}  // namespace llmtrain
