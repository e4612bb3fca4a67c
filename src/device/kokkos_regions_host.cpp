#include <Kokkos_Core.hpp>

#include "core/profile.hpp"
#include "device/profile_tools.hpp"

namespace llmtrain {

namespace {

/// Tools keep one stack of regions per process, so that only the thread that runs Kokkos has regions.
constinit thread_local bool has_regions = false;

constexpr SpanListener kokkos_regions = {[](SpanKind /*kind*/, const char* name) {
                                           if (has_regions) Kokkos::Profiling::pushRegion(name);
                                         },
                                         [] {
                                           if (has_regions) Kokkos::Profiling::popRegion();
                                         }};

}  // namespace

void attach_profile_tools() {
  if (!Kokkos::Profiling::profileLibraryLoaded()) return;
  has_regions = true;
  set_span_listener(&kokkos_regions);
}

void detach_profile_tools() {
  set_span_listener(nullptr);
  has_regions = false;
}

}  // namespace llmtrain
