#pragma once
// Resources that the launcher (mpirun, srun, none) and the operating system gave this rank, and the resulting settings.

#include <string>

namespace llmtrain {

class Communicator;

/// Sets defaults of Open MPI and UCX in the environment, before MPI_Init, where the user has not set them.
void set_mpi_defaults();
/// Makes a crash end the process at once, so that the launcher sees the signal; called after MPI_Init. The handlers of
/// MPI's libraries print a backtrace, for which they allocate memory: if the heap's lock is held, the process would
/// hang. Sanitizers keep their handlers, which report errors.
void let_crashes_kill();

struct ThreadFacts {
  int requested = 0;      ///< OMP_NUM_THREADS; 0 = not set
  int cpus_per_task = 0;  ///< SLURM_CPUS_PER_TASK; 0 = not set
  int node_cores = 1;     ///< logical cores of this node that the job may use
  int ranks_on_node = 1;
  int bound_cores = 1;      ///< cores this process may run on
  bool slurm_step = false;  ///< started by srun rather than mpirun
};

/// Maximum per rank, a limit of Kokkos' OpenMP space.
inline constexpr int max_threads = 512;

struct ThreadChoice {
  int threads;              ///< 1 to max_threads
  std::string note;         ///< reason for the number
  bool cores_lost = false;  ///< the binding excludes cores of this rank's share; the note says the remedy
};

ThreadChoice choose_threads(const ThreadFacts& facts);
ThreadFacts find_thread_facts(int ranks_on_node);

/// Number of threads of this rank for work beside kernels, such as reading files: as many as kernels use, up to a
/// limit.
int worker_threads(const Communicator& communicator);

}  // namespace llmtrain
