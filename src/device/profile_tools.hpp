#pragma once
// Makes the spans of core/profile.hpp visible to tools outside of this program: regions of Kokkos Tools on the host
// (profile_tools_host.cpp), NVTX ranges of the domain "llmtrain" on a GPU (profile_tools_cuda.cpp).

namespace llmtrain {

/// Installs the listener for spans if a tool watches this process, which then has been loaded; else spans stay as cheap
/// as they are without one. DeviceRuntime attaches and detaches.
void attach_profile_tools();
void detach_profile_tools();

}  // namespace llmtrain
