#include "parallel/job/runtime.hpp"

#include <mpi.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <thread>

#include "parallel/control_communicator.hpp"
#include "parallel/job/failure.hpp"
#include "parallel/job/launcher.hpp"
#include "parallel/mpi_transfer.hpp"

namespace llmtrain {

Runtime::Runtime(int& argc, char**& argv) {
  set_mpi_defaults();
  int provided = MPI_THREAD_SINGLE;
  mpi_check(MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread");
  let_crashes_kill();
  begin_failure_handling();
  LLMTRAIN_CHECK(provided >= MPI_THREAD_FUNNELED,
                 "this MPI does not support MPI_THREAD_FUNNELED; use an MPI built with threads");
  const NodePlace place = find_node_place(MPI_COMM_WORLD);
  const ThreadChoice choice = choose_threads(find_thread_facts(place.size));
  threads_ = choice.threads;
  thread_note_ = choice.note;
  cores_lost_ = choice.cores_lost;
  rank_on_node_ = place.rank;
  ranks_of_node_ = place.size;
  if (!device_memory_is_host()) {
    communicator_ = make_control_communicator();
    return;
  }
  try {
    start_device();
  } catch (const UserError&) {  // the error is the same on every rank: all can finalize MPI
    device_.reset();
    end_failure_handling();
    MPI_Finalize();
    throw;
  }
}

void Runtime::start_device() {
  if (stream_ != nullptr) return;
  throw_on_all_ranks(agreement_of_job(),
                     [&] { device_ = std::make_unique<DeviceRuntime>(rank_on_node_, threads_, ranks_of_node_); });
  communicator_ = make_communicator();
  stream_ = std::make_unique<Stream>();
}

Runtime::~Runtime() {
  abort_if_unwinding();
  stream_.reset();
  communicator_.reset();
  device_.reset();
  end_failure_handling();
  MPI_Finalize();
}

std::string Runtime::watch(const WatchOptions& options) {
  LLMTRAIN_CHECK(!watchdog_, "one watchdog per job");
  watchdog_ = std::make_unique<Watchdog>(options, *communicator_);
  return watchdog_->note();
}

int Runtime::guard(const std::function<int()>& body) {
  const int code = run_guarded(body);
  watchdog_.reset();
  return code;
}

int Runtime::run_guarded(const std::function<int()>& body) {
  try {
    return finish_job(body());
  } catch (const UserError& error) {
    return end_job(static_cast<int>(error.code()), error.what());
  } catch (const std::bad_alloc&) {
    fail_job("out of memory");
  } catch (const std::exception& error) {
    fail_job(error.what());
  } catch (...) {
    fail_job("an exception of unknown type");
  }
}

std::string mpi_library() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = "MPI";
  int length = 0;
  mpi_check(MPI_Get_library_version(text, &length), "MPI_Get_library_version");
  const std::string library(text);
  return library.substr(0, library.find(','));
}

void print_as_first_process(const std::string& message) {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID"}) {
    const char* rank = std::getenv(name);
    if (rank == nullptr) continue;
    if (std::string(rank) != "0") {
      std::this_thread::sleep_for(std::chrono::seconds(1));
      return;
    }
    break;
  }
  std::fputs(message.c_str(), stderr);
}

void throw_on_all_ranks(Communicator& communicator, const std::function<void()>& work) {
  throw_on_all_ranks(Agreement{[&](int64_t value) { return sum_of_ranks(communicator, value); },
                               [&](const std::string& mine) { return communicator.gather_all(mine); }},
                     work);
}

void on_root(Communicator& communicator, const std::function<void()>& work) {
  throw_on_all_ranks(communicator, [&] {
    if (communicator.rank() == 0) work();
  });
}

}  // namespace llmtrain
