#pragma once
// Long work that the ranks do in parallel: a failure on any of them, or a request to stop, ends it on all of them soon.

#include <functional>
#include <string>

#include "parallel/communicator.hpp"

namespace llmtrain {

/// Throws UserError(stopped) on every rank; `code` is agreed. `where`: "while the weights were read".
[[noreturn]] void cancel_work(int64_t code, const std::string& where);

/// Does the same if any rank has a request to stop. Collective: for work that the ranks do in step.
void throw_if_stopping(Communicator& communicator, const std::string& where);

/// Function that a rank calls between two work items, on the thread that started the work. It throws to leave the work.
using Pause = std::function<void()>;

/// Collective. Runs `work` on each rank, without other collectives in it. The ranks meet every half second, and when
/// their work is done; after a UserError on any, or a request to stop, all leave their work and throw. `meeting`:
/// additional collective work at each meeting.
void run_cancellable(Communicator& communicator, const std::string& where,
                     const std::function<void(const Pause&)>& work, const std::function<void()>& meeting = {});

}  // namespace llmtrain
