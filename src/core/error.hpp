#pragma once
// Two kinds of failure. UserError: the deck, the data or the machine is at fault; rank 0 prints one message that says
// what to do. Error: everything else (a bug, MPI, HDF5, CUDA); the program prints rank and host and aborts the job.

#include <stdexcept>
#include <string>
#include <string_view>

namespace llmtrain {

/// Process exit codes, after sysexits.h. The code is never 0 after a partial run.
enum class ExitCode : int {
  finished = 0,
  command_line = 64,
  bad_content = 65,    ///< data, tokenizer, weights or checkpoint are invalid
  missing_input = 66,  ///< an input does not exist or cannot be read
  no_device = 69,
  internal = 70,
  cannot_create = 73,  ///< an output cannot be created, or a run may not be overwritten or has another owner
  io = 74,
  stopped = 75,  ///< resumable: submit the same command again
  peer_failed = 76,
  deck = 78,
  diverged = 79,
};

/// Makes foreign text safe for a terminal: writes control characters, except new lines and tabs, and bytes that are not
/// UTF-8 as \xNN.
std::string without_controls(std::string_view text);

/// An error that the user can correct. The message names file:line where there is one, what is wrong and what to do.
class UserError : public std::runtime_error {
 public:
  UserError(ExitCode code, std::string_view message) : std::runtime_error(without_controls(message)), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

/// A bug or a failure of the system.
class Error : public std::runtime_error {
 public:
  explicit Error(std::string_view message) : std::runtime_error(without_controls(message)) {}
};

[[noreturn]] void fail_check(const char* condition, const char* file, int line, const std::string& message);

}  // namespace llmtrain

/// Checks an invariant of the program; throws Error with file and line (without the folder of the build). `message` is
/// anything that std::string accepts.
#define LLMTRAIN_CHECK(condition, message)                                                  \
  do {                                                                                      \
    if (!(condition)) ::llmtrain::fail_check(#condition, __FILE_NAME__, __LINE__, message); \
  } while (false)
