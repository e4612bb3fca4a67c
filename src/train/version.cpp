#include <fmt/format.h>
#include <hdf5.h>

#include "kernels/attention.hpp"
#include "train/program.hpp"

namespace llmtrain {

std::string version_text() {
  unsigned major = 0, minor = 0, release = 0;
  H5get_libversion(&major, &minor, &release);
  const std::string attention = attention_library();
  return fmt::format("llmtrain {} ({})\n{}{}{}, {}, HDF5 {}.{}.{}\n", LLMTRAIN_VERSION, device_kind(),
                     device_libraries(), attention.empty() ? "" : ", ", attention, mpi_library(), major, minor,
                     release);
}

}  // namespace llmtrain
