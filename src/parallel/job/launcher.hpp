#pragma once
// What the launcher (mpirun, srun, none) and the operating system gave this rank, and what follows from it.

#include <string>

namespace llmtrain {

class Communicator;

/// Settings of Open MPI and UCX that must stand in the environment before MPI_Init, where the user has not set them.
void set_mpi_defaults();
/// After MPI_Init: a crash ends the process at once and the launcher sees the signal. The handlers of MPI's libraries
/// print a backtrace, for which they allocate memory: where the heap's lock is held, the process would stay for ever.
/// Sanitizers keep theirs, which are their reports.
void let_crashes_kill();

struct ThreadFacts {
  int requested = 0;      ///< OMP_NUM_THREADS; 0 = not set
  int cpus_per_task = 0;  ///< SLURM_CPUS_PER_TASK; 0 = not set
  int node_cores = 1;     ///< logical cores of this node that the job may use
  int ranks_on_node = 1;
  int bound_cores = 1;      ///< cores this process may run on
  bool slurm_step = false;  ///< started by srun rather than mpirun
};

/// Of a rank: Kokkos' OpenMP space has room for no more.
inline constexpr int max_threads = 512;

struct ThreadChoice {
  int threads;              ///< 1 to max_threads
  std::string note;         ///< why that many
  bool cores_lost = false;  ///< the binding leaves out cores of this rank's share; the note says the remedy
};

ThreadChoice choose_threads(const ThreadFacts& facts);
ThreadFacts find_thread_facts(int ranks_on_node);

/// Threads this rank may use for work beside kernels, such as reading files: as many as those have, within reason.
int worker_threads(const Communicator& communicator);

}  // namespace llmtrain
