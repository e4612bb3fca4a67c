#include "parallel/job/cancellable_work.hpp"

#include <fmt/format.h>

#include <array>
#include <chrono>
#include <exception>

#include "core/error.hpp"
#include "core/stop_request.hpp"
#include "parallel/job/runtime.hpp"

namespace llmtrain {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds between_meetings{500};

/// Out of this rank's work. Not a UserError, which the work itself may catch.
struct Left : std::exception {};

}  // namespace

void cancel_work(int64_t code, const std::string& where) {
  throw UserError(ExitCode::stopped,
                  fmt::format("stopped by {} {}; submit the same command again", stop_reason(code), where));
}

void throw_if_stopping(Communicator& communicator, const std::string& where) {
  int64_t stop[] = {look_for_stop()};
  communicator.maximum(stop);
  if (stop[0] != 0) cancel_work(stop[0], where);
}

void run_cancellable(Communicator& communicator, const std::string& where,
                     const std::function<void(const Pause&)>& work, const std::function<void()>& meeting) {
  struct Facts {
    int64_t busy, failed, stop;  // of any rank
  } facts{1, 0, 0};
  std::exception_ptr error;
  Clock::time_point next = Clock::now() + between_meetings;
  const auto meet = [&](bool busy) {
    std::array<int64_t, 3> all = {busy ? 1 : 0, error ? 1 : 0, look_for_stop()};
    communicator.maximum(all);
    facts = {all[0], all[1], all[2]};
    if (meeting) meeting();
    next = Clock::now() + between_meetings;
  };
  const auto over = [&] { return facts.busy == 0 || facts.failed != 0 || facts.stop != 0; };
  try {
    work([&] {
      if (Clock::now() < next) return;
      meet(true);
      if (over()) throw Left();
    });
  } catch (const Left&) {  // what all know is told below
  } catch (const UserError&) {
    error = std::current_exception();
  }
  while (!over()) meet(false);
  if (facts.failed != 0) {
    throw_on_all_ranks(communicator, [&] {
      if (error) std::rethrow_exception(error);
    });
  }
  if (facts.busy != 0) cancel_work(facts.stop, where);
}

}  // namespace llmtrain
