#include "kernels/host/parallel.hpp"

#include <omp.h>

#include <optional>

#include "kernels/host/buffer.hpp"

namespace llmtrain::host {

namespace {

/// Kokkos instances must be destroyed before Kokkos is finalized, so no plain static holds one.
struct Spaces {
  std::optional<Kokkos::OpenMP> usual;  ///< with the number of threads at Kokkos' start
  std::optional<Kokkos::OpenMP> other;  ///< with a different number
};
Spaces& spaces() {
  static Spaces both;
  return both;
}

struct Workspace {
  char* memory = nullptr;
  int64_t bytes = 0;
  int64_t peak = 0;
  Buffer own;
};
Workspace& workspace_of_thread() {
  static thread_local Workspace workspace;
  return workspace;
}

}  // namespace

int thread_count() { return omp_in_parallel() ? 1 : omp_get_max_threads(); }

const Kokkos::OpenMP& execution_space() {
  Spaces& s = spaces();
  if (!s.usual) {
    s.usual.emplace();
    Kokkos::push_finalize_hook([] { spaces() = {}; });
  }
  const int threads = omp_get_max_threads();
  if (s.usual->concurrency() == threads) return *s.usual;
  if (!s.other || s.other->concurrency() != threads) s.other.emplace(threads);
  return *s.other;
}

char* workspace(int64_t bytes) {
  Workspace& w = workspace_of_thread();
  w.peak = std::max(w.peak, bytes);
  return bytes <= w.bytes ? w.memory : w.own.reserve(bytes);
}

void set_workspace(char* memory, int64_t bytes) {
  const auto past = static_cast<int64_t>(reinterpret_cast<uintptr_t>(memory) % workspace_alignment);
  const int64_t skipped = past == 0 ? 0 : workspace_alignment - past;
  Workspace& w = workspace_of_thread();
  w.memory = memory + skipped;
  w.bytes = std::max<int64_t>(bytes - skipped, 0);
  w.peak = 0;
}

int64_t workspace_peak() { return workspace_of_thread().peak; }

}  // namespace llmtrain::host
