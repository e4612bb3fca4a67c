#include "parallel/job/failure.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <future>
#include <memory>
#include <thread>

#include "core/activity.hpp"
#include "core/error.hpp"
#include "parallel/control_communicator.hpp"
#include "parallel/mpi_transfer.hpp"

namespace llmtrain {

namespace {

std::array<char, 4096> file{};
std::atomic<bool> active = false;

using std::chrono::steady_clock;

// Ranks with the same failure fail at about the same time; a rank that fails alone must not keep the others waiting.
constexpr auto patience = std::chrono::seconds(5);
// MPI_Abort may fail to end the process: after this time the process ends itself.
constexpr unsigned abort_seconds = 10;
constexpr auto action_patience = std::chrono::seconds(3);

struct Session {
  std::atomic<bool> active = false;
  MPI_Comm comm = MPI_COMM_NULL;
  int rank = 0;
  int size = 1;
  int exceptions = 0;  // uncaught exceptions at its start
  std::array<char, 256> host{};
};
Session session;

void print(const char* text) {
  std::fflush(stdout);
  std::fprintf(stderr, "%s\n", text);
  std::fflush(stderr);
}

std::atomic<void (*)()> abort_action = nullptr;

void act_before_abort() {
  void (*action)() = abort_action.exchange(nullptr);
  if (action == nullptr) return;
  try {
    const auto done = std::make_shared<std::promise<void>>();
    const std::future<void> end = done->get_future();
    std::thread([action, done] {
      action();
      done->set_value();
    }).detach();
    end.wait_for(action_patience);
  } catch (const std::exception&) {  // no memory or no thread: the process ends without the action
  }
}

[[noreturn]] void abort_job(int code) {
  std::signal(SIGALRM, SIG_DFL);
  alarm(abort_seconds);
  claim_end(code);
  act_before_abort();
  session.active = false;
  MPI_Abort(MPI_COMM_WORLD, code);
  _exit(code);
}

/// Does not allocate: memory may be exhausted.
void print_with_rank(const char* message) {
  std::fflush(stdout);
  std::fprintf(stderr, "llmtrain: rank %d of %d on %s: %s\n", session.rank, session.size, session.host.data(), message);
  std::fflush(stderr);
}

[[noreturn]] void on_terminate() {
  int code = static_cast<int>(ExitCode::internal);
  const bool with_rank = session.active;
  const auto report = [&](const char* message) {
    if (with_rank) {
      print_with_rank(message);
    } else if (session.rank == 0) {  // thrown by Runtime on every rank
      print(message);
    } else {  // the launcher may end rank 0 when another exits
      std::this_thread::sleep_for(std::chrono::seconds(1));
    }
  };
  try {
    if (const std::exception_ptr error = std::current_exception()) std::rethrow_exception(error);
    report("std::terminate was called");
  } catch (const UserError& error) {
    code = static_cast<int>(error.code());
    report(error.what());
  } catch (const std::exception& error) {
    report(error.what());
  } catch (...) {
    report("an exception of unknown type");
  }
  if (session.active) abort_job(code);
  _exit(code);
}

void on_exit() {
  if (!session.active) return;
  print_with_rank("exit() was called in the middle of the run");
  abort_job(static_cast<int>(ExitCode::internal));
}

struct Outcome {
  int64_t failed;
  int64_t code;
  uint64_t message;  // hash
};

/// Gathers the outcomes of all ranks; nullopt if some rank does not answer within the limit (no limit: waits for ever).
std::optional<std::vector<Outcome>> agree(const Outcome& own, std::optional<steady_clock::duration> limit) {
  // After a timeout MPI may still access these; they are never freed.
  static std::deque<std::vector<Outcome>> kept;
  const Outcome& mine = kept.emplace_back(1, own).front();
  std::vector<Outcome>& all = kept.emplace_back(static_cast<size_t>(session.size));
  MPI_Request request = MPI_REQUEST_NULL;
  mpi_check(MPI_Iallgather(&mine, sizeof mine, MPI_BYTE, all.data(), sizeof mine, MPI_BYTE, session.comm, &request),
            "MPI_Iallgather");
  const auto begin = steady_clock::now();
  for (int done = 0, tries = 0;; ++tries) {
    mpi_check(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
    if (done != 0) {
      std::vector<Outcome> result = std::move(all);
      kept.pop_back();
      kept.pop_back();
      return result;
    }
    if (limit && steady_clock::now() - begin > *limit) return std::nullopt;
    if (limit) report_progress();
    // others may still be working for long
    if (tries > 1000) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

/// Priority among several errors for the exit code: deck, missing files, bad content.
ExitCode more_urgent(ExitCode a, ExitCode b) {
  for (const ExitCode code : {ExitCode::deck, ExitCode::missing_input, ExitCode::bad_content}) {
    if (a == code || b == code) return code;
  }
  return a;
}

/// Prefers an error's code to the highest of those that ranks returned.
int common_code(const std::vector<Outcome>& all) {
  std::optional<ExitCode> error;
  int64_t highest = 0;
  for (const Outcome& o : all) {
    highest = std::max(highest, o.code);
    if (o.failed == 0) continue;
    const ExitCode its{static_cast<int>(o.code)};
    error = error ? more_urgent(*error, its) : its;
  }
  return error ? static_cast<int>(*error) : static_cast<int>(highest);
}

}  // namespace

void set_claim_file(const std::string& path) {
  active = false;
  if (path.empty() || path.size() >= file.size()) return;
  std::memcpy(file.data(), path.c_str(), path.size() + 1);
  active = true;
}

bool claim_end(int code) {
  if (!active) return true;
  const int descriptor = ::open(file.data(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor < 0) return errno != EEXIST;
  std::array<char, 16> text{};
  const char* end = std::to_chars(text.data(), text.data() + text.size(), code).ptr;
  [[maybe_unused]] const ssize_t written = ::write(descriptor, text.data(), static_cast<size_t>(end - text.data()));
  ::close(descriptor);
  return true;  // a file without a code is a claim too
}

std::optional<int> claimed_code() {
  if (!active) return std::nullopt;
  const int descriptor = ::open(file.data(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return std::nullopt;
  std::array<char, 16> text{};
  const ssize_t length = ::read(descriptor, text.data(), text.size());
  ::close(descriptor);
  int code = 0;
  if (length > 0) std::from_chars(text.data(), text.data() + length, code);
  return code > 0 && code < 256 ? std::optional(code) : std::nullopt;
}

void begin_failure_handling() {
  static const bool hooked = [] {
    std::set_terminate(on_terminate);
    return std::atexit(on_exit) == 0;
  }();
  LLMTRAIN_CHECK(hooked && !session.active, "one Runtime per process");
  session.comm = mpi_duplicate(MPI_COMM_WORLD);
  mpi_check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  mpi_check(MPI_Comm_rank(session.comm, &session.rank), "MPI_Comm_rank");
  mpi_check(MPI_Comm_size(session.comm, &session.size), "MPI_Comm_size");
  session.exceptions = std::uncaught_exceptions();
  gethostname(session.host.data(), session.host.size() - 1);
  session.active = true;
}

void end_failure_handling() {
  session.active = false;
  MPI_Comm_free(&session.comm);
}

Agreement agreement_of_job() {
  return {[](int64_t value) {
            const CollectiveScope scope("sum", sizeof(value));
            mpi_all_reduce({&value, 1}, MPI_SUM, session.comm);
            return value;
          },
          [](const std::string& mine) { return mpi_gather_all(mine, session.comm); }};
}

void throw_on_all_ranks(const Agreement& ranks, const std::function<void()>& work) {
  std::string mine;  // code, a space, message
  try {
    work();
  } catch (const UserError& error) {
    mine = fmt::format("{} {}", static_cast<int>(error.code()), error.what());
  }
  if (ranks.sum(mine.empty() ? 0 : 1) == 0) return;
  std::vector<std::string> errors = ranks.gather_all(mine);
  std::erase(errors, std::string());

  std::optional<ExitCode> code;
  std::vector<std::string> messages;
  for (const std::string& error : errors) {
    int number = 0;
    const size_t space = error.find(' ');
    std::from_chars(error.data(), error.data() + space, number);
    code = code ? more_urgent(*code, ExitCode{number}) : ExitCode{number};
    std::string message = error.substr(space + 1);
    if (std::find(messages.begin(), messages.end(), message) == messages.end()) messages.push_back(std::move(message));
  }
  throw UserError(*code, fmt::format("{}", fmt::join(messages, "\n")));
}

int finish_job(int code) {
  std::fflush(nullptr);  // the launcher may kill this process when another exits with an error
  const CollectiveScope scope("end of the job", 0);
  return common_code(*agree({0, code, 0}, std::nullopt));
}

int end_job(int code, const std::string& message) {
  std::fflush(nullptr);
  const Outcome mine{1, code, std::hash<std::string>{}(message)};
  const auto all = agree(mine, patience);
  if (!all) {
    print_with_rank(message.c_str());
    abort_job(code);
  }
  const auto same = [&](const Outcome& o) { return o.failed != 0 && o.message == mine.message; };
  if (std::find_if(all->begin(), all->end(), same) - all->begin() == session.rank) {
    if (std::all_of(all->begin(), all->end(), same)) {
      print(message.c_str());
    } else {
      print_with_rank(message.c_str());
    }
  }
  return common_code(*all);
}

void fail_job(const char* message) {
  print_with_rank(message);
  abort_job(static_cast<int>(ExitCode::internal));
}

void abort_with_report(int code, const std::string& text) {
  // Bypasses stderr's buffer: the thread that is stuck may hold its lock.
  for (size_t done = 0; done < text.size();) {
    const ssize_t n = ::write(STDERR_FILENO, text.data() + done, text.size() - done);
    if (n <= 0) break;
    done += static_cast<size_t>(n);
  }
  abort_job(code);
}

void set_abort_action(void (*action)()) { abort_action = action; }

void abort_if_unwinding() {
  if (std::uncaught_exceptions() > session.exceptions) fail_job("the program ended with an uncaught exception");
}

}  // namespace llmtrain
