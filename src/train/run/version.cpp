#include "train/run/version.hpp"

#include <fmt/format.h>
#include <hdf5.h>

#include "kernels/attention.hpp"
#include "kernels/matmul.hpp"
#include "parallel/communicator.hpp"
#include "parallel/job/runtime.hpp"

namespace llmtrain {

std::string version_text() {
  unsigned major = 0, minor = 0, release = 0;
  H5get_libversion(&major, &minor, &release);
  std::string libraries = device_libraries();
  for (const std::string& optional : {product_library(), attention_library(), transfer_library()}) {
    if (!optional.empty()) libraries += ", " + optional;
  }
  return fmt::format("llmtrain {} ({})\n{}, {}, HDF5 {}.{}.{}\n", LLMTRAIN_VERSION, device_kind(), libraries,
                     mpi_library(), major, minor, release);
}

}  // namespace llmtrain
