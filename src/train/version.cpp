#include <fmt/format.h>
#include <hdf5.h>
#include <mpi.h>

#include <cstdlib>
#include <string>

#include "train/program.hpp"

namespace llmtrain {

std::string version_text() {
  char mpi[MPI_MAX_LIBRARY_VERSION_STRING] = "MPI";
  int length = 0;
  MPI_Get_library_version(mpi, &length);
  std::string library(mpi);
  library = library.substr(0, library.find(','));
  unsigned major = 0, minor = 0, release = 0;
  H5get_libversion(&major, &minor, &release);
  return fmt::format("llmtrain {} ({})\n{}, {}, HDF5 {}.{}.{}\n", LLMTRAIN_VERSION, device_kind(), device_libraries(),
                     library, major, minor, release);
}

bool is_first_process() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID"}) {
    if (const char* rank = std::getenv(name)) return std::string(rank) == "0";
  }
  return true;
}

}  // namespace llmtrain
