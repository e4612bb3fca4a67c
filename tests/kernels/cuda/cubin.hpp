#pragma once
// Resources of each compiled kernel, read from the device code in an object file or library.

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace llmtrain::test {

struct KernelResources {
  std::string name;      ///< as in the source: "void run<Kernel>(Kernel)"
  int architecture = 0;  ///< 90 is compute capability 9.0
  int64_t threads = 0;   ///< maximum per block, from its launch bounds; 0: none
  int64_t registers = 0;
  int64_t frame_bytes = 0;   ///< local memory of a thread: spilled registers, and dynamically indexed arrays
  int64_t shared_bytes = 0;  ///< static
};

/// All kernels of all architectures whose machine code lies in `file`, uncompressed.
std::vector<KernelResources> read_kernel_resources(const std::string& file);

/// The kernels whose intermediate code (PTX) lies in `file`, uncompressed, with the architectures that it is for.
std::map<std::string, std::set<int>> read_ptx_kernels(const std::string& file);

}  // namespace llmtrain::test
