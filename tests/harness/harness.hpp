#pragma once
// Access to the process of a test. The harness starts it before the first test: the device for the folders device and
// kernels; MPI, device and threads for parallel and higher folders; nothing for the others.

#include "device/device.hpp"

namespace llmtrain {
class Communicator;
class Runtime;
}  // namespace llmtrain

namespace llmtrain::test {

/// The stream of this process. Ends the program as skipped (exit code 77) if the device is missing.
Stream& stream();

/// All ranks of this test program. Folders from parallel up only.
Communicator& communicator();
/// The runtime, for run_program(). The same folders.
Runtime& runtime();

/// Number of ranks of this node that can share a few MiB; 1 if the machine has no room for shared memory. Collective.
int ranks_with_shared_memory();

}  // namespace llmtrain::test
