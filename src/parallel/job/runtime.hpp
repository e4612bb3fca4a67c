#pragma once
// The life of the SPMD program: MPI, device, threads, and the one place where failures end.

#include <functional>
#include <memory>
#include <string>

#include "device/device.hpp"
#include "parallel/communicator.hpp"
#include "parallel/job/watchdog.hpp"

namespace llmtrain {

/// Starts MPI (FUNNELED), finds the ranks of this node, divides the cores among them. One per process.
class Runtime {
 public:
  Runtime(int& argc, char**& argv);
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  /// What follows computes, for which files and plans need no GPU; the host, where that is the device, is there from
  /// the beginning. Collective; the communicator of before is gone. UserError(no_device) on every rank where there is
  /// none to compute with.
  void start_device();

  Communicator& communicator() { return *communicator_; }          ///< moves no tensors before start_device()
  Stream& stream() { return *stream_; }                            ///< after start_device()
  int threads() const { return threads_; }                         ///< of this rank
  const std::string& thread_note() const { return thread_note_; }  ///< why it is that many
  bool cores_lost() const { return cores_lost_; }  ///< fewer than this rank's share; the note says the remedy

  /// Runs `body` and returns the exit code. UserError: one message on stderr, from rank 0 when every rank has it
  /// (throw_on_all_ranks), else from the rank that has it, which then aborts the job with the error's code. Anything
  /// else: rank, host and message, then MPI_Abort: never a hang in MPI_Finalize, never 0 after a partial run.
  int guard(const std::function<int()>& body);

  /// Collective, once: from here to the end of guard() a rank that is lost or stuck ends the job. Gives what the user
  /// should know; mostly nothing.
  std::string watch(const WatchOptions& options);

 private:
  int run_guarded(const std::function<int()>& body);

  int rank_on_node_ = 0, ranks_of_node_ = 1;
  std::unique_ptr<DeviceRuntime> device_;
  std::unique_ptr<Communicator> communicator_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Watchdog> watchdog_;
  int threads_ = 1;
  std::string thread_note_;
  bool cores_lost_ = false;
};

/// "Open MPI v5.0.7". Needs no MPI_Init.
std::string mpi_library();

/// For an error of every rank that is known outside of MPI: the process that the launcher made rank 0 prints `message`
/// on stderr; the others give it a second for that, as launchers kill all when one exits with an error.
void print_as_first_process(const std::string& message);

/// Collective: runs `work` on this rank, then all ranks agree. If any threw a UserError, every rank throws one with the
/// messages of all (equal ones once), so that all end together with one message. Other exceptions pass through (abort).
void throw_on_all_ranks(Communicator& communicator, const std::function<void()>& work);

}  // namespace llmtrain
