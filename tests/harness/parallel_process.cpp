#include <mpi.h>

#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>

#include "core/error.hpp"
#include "harness/harness.hpp"
#include "harness/process.hpp"
#include "parallel/job/runtime.hpp"

namespace llmtrain::test {
namespace {
std::unique_ptr<Runtime> of_process;
std::string missing_device;

}  // namespace

/// Tests of pure arithmetic run without a device; those that need one end here.
Runtime& runtime() {
  if (!of_process) {
    std::cerr << "skipped: " << missing_device << '\n';
    std::_Exit(skipped);
  }
  return *of_process;
}

Process::Process(int& argc, char**& argv) {
  try {
    of_process = std::make_unique<Runtime>(argc, argv);
    of_process->start_device();
  } catch (const UserError& error) {
    if (error.code() != ExitCode::no_device) throw;
    of_process.reset();
    missing_device = error.what();
    has_device_ = false;
    return;
  }
  rank_ = of_process->communicator().rank();
  ranks_ = of_process->communicator().size();
}
Process::~Process() { of_process.reset(); }

int Process::agree(int code) const {
  if (of_process) MPI_Allreduce(MPI_IN_PLACE, &code, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  return code;
}
void Process::abort() const {
  if (of_process) MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);
  std::abort();
}

Stream& stream() { return runtime().stream(); }
Communicator& communicator() { return runtime().communicator(); }
int ranks_with_shared_memory() {
  return communicator().sharing_refusal(int64_t{4} << 20).empty() ? communicator().sharing_ranks() : 1;
}

}  // namespace llmtrain::test
