#pragma once
// The communicator of a single process without MPI: login-node tools, estimates and tests run the same code with it.

#include <memory>

#include "parallel/communicator.hpp"

namespace llmtrain {

std::unique_ptr<Communicator> make_local_communicator();
/// One that lives as long as the process.
Communicator& this_process();

}  // namespace llmtrain
