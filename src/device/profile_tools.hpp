#pragma once
// Passes the spans of core/profile.hpp to external profilers: regions of Kokkos Tools on the host
// (kokkos_regions_host.cpp), NVTX ranges of the domain "llmtrain" on a GPU (nvtx_cuda.cpp).

namespace llmtrain {

/// Installs a span listener if a profiler is attached to this process, and is then loaded; without one, spans keep
/// their low cost. DeviceRuntime attaches and detaches.
void attach_profile_tools();
void detach_profile_tools();

}  // namespace llmtrain
