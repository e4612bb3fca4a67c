#include <mpi.h>

#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>

#include "core/error.hpp"
#include "harness/harness.hpp"
#include "harness/process.hpp"
#include "parallel/runtime.hpp"

namespace llmtrain::test {
namespace {
std::unique_ptr<Runtime> runtime;
std::string missing_device;

/// Tests of pure arithmetic run without a device; those that ask for it end here.
Runtime& required_runtime() {
  if (!runtime) {
    std::cerr << "skipped: " << missing_device << '\n';
    std::_Exit(skipped);
  }
  return *runtime;
}
}  // namespace

Process::Process(int& argc, char**& argv) {
  try {
    runtime = std::make_unique<Runtime>(argc, argv);
  } catch (const UserError& error) {
    if (error.code() != ExitCode::no_device) throw;
    missing_device = error.what();
    return;
  }
  rank_ = runtime->communicator().rank();
  ranks_ = runtime->communicator().size();
}
Process::~Process() { runtime.reset(); }

int Process::agree(int code) const {
  if (runtime) MPI_Allreduce(MPI_IN_PLACE, &code, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  return code;
}
void Process::abort() const {
  if (runtime) MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);
  std::abort();
}

Stream& stream() { return required_runtime().stream(); }
Communicator& communicator() { return required_runtime().communicator(); }

}  // namespace llmtrain::test
