#pragma once
// What a test may use of the process it runs in. The harness starts it before the first test: the device for the
// folders device and kernels, MPI, device and threads for parallel and the folders above, nothing for the others.

#include "device/device.hpp"

namespace llmtrain {
class Communicator;
class Runtime;
}  // namespace llmtrain

namespace llmtrain::test {

/// The stream of this process. Ends the program as skipped (exit code 77) where the device is missing.
Stream& stream();

/// All ranks of this test program. Folders from parallel up only.
Communicator& communicator();
/// For run_program(). The same folders.
Runtime& runtime();

/// Ranks of this node that can share a few MiB; 1 where the machine has no room for shared memory. Collective.
int ranks_with_shared_memory();

}  // namespace llmtrain::test
