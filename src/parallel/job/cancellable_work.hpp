#pragma once
// Long work that the ranks do side by side: a failure on any of them, or a wish to stop, ends it on all of them soon.

#include <functional>
#include <string>

#include "parallel/communicator.hpp"

namespace llmtrain {

/// UserError(stopped) on every rank, `code` agreed. `where`: "while the weights were read".
[[noreturn]] void cancel_work(int64_t code, const std::string& where);

/// The same where any rank is asked to stop. Collective: for work that the ranks do in step.
void throw_if_stopping(Communicator& communicator, const std::string& where);

/// What a rank calls between two pieces of its work, on the thread that the work began on. It may leave the work.
using Pause = std::function<void()>;

/// Collective. Runs `work` on each rank, without other collectives in it. Every half second the ranks meet in a pause,
/// or when their work is done; after a UserError on any, or a wish to stop, all leave their work and throw. `meeting`:
/// what else they do there, together.
void run_cancellable(Communicator& communicator, const std::string& where,
                     const std::function<void(const Pause&)>& work, const std::function<void()>& meeting = {});

}  // namespace llmtrain
