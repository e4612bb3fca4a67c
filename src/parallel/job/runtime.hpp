#pragma once
// Life cycle of the SPMD program: MPI, device, threads, and the central handling of failures.

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

  /// Starts the device for computation; files and plans need no GPU. (The host as the device is available from the
  /// beginning.) Collective; it invalidates earlier references to the communicator. UserError(no_device) on every rank
  /// if a device is missing.
  void start_device();

  Communicator& communicator() { return *communicator_; }          ///< cannot move tensors before start_device()
  Stream& stream() { return *stream_; }                            ///< valid after start_device()
  int threads() const { return threads_; }                         ///< threads of this rank
  const std::string& thread_note() const { return thread_note_; }  ///< reason for the number of threads
  bool cores_lost() const { return cores_lost_; }  ///< fewer than this rank's share; the note says the remedy

  /// Runs `body` and returns the exit code. A UserError prints one message on stderr: from rank 0 when every rank has
  /// it (throw_on_all_ranks), else from the rank that has it, which then aborts the job with the error's code. Any
  /// other exception prints rank, host and message and calls MPI_Abort: never a hang in MPI_Finalize, never 0 after a
  /// partial run.
  int guard(const std::function<int()>& body);

  /// Starts the watchdog. Collective, once: until the end of guard() a rank that is lost or stuck ends the job. Returns
  /// a note for the user, usually empty.
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

/// Name and version: "Open MPI v5.0.7". Needs no MPI_Init.
std::string mpi_library();

/// Reports an error that every rank has outside MPI: the process that the launcher made rank 0 prints `message` on
/// stderr; the others wait a second, as launchers kill all when one exits with an error.
void print_as_first_process(const std::string& message);

/// Collective: runs `work` on this rank, then all ranks agree. If any threw a UserError, every rank throws one with the
/// messages of all (equal ones once), so that all end together with one message. Other exceptions pass through (abort).
void throw_on_all_ranks(Communicator& communicator, const std::function<void()>& work);
/// The same for work of rank 0 alone.
void on_root(Communicator& communicator, const std::function<void()>& work);

/// Collective: returns the sum of a value over the ranks.
inline int64_t sum_of_ranks(Communicator& communicator, int64_t value) {
  communicator.sum(std::span(&value, 1));
  return value;
}

}  // namespace llmtrain
