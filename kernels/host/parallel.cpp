#include "kernels/host/parallel.hpp"

#include <omp.h>

#include <optional>

#include "kernels/host/buffer.hpp"

namespace llmtrain::host {

namespace {

/// Kokkos instances must be gone before Kokkos ends, so no plain static holds one.
struct Spaces {
  std::optional<Kokkos::OpenMP> usual;  ///< with the threads that Kokkos was started with
  std::optional<Kokkos::OpenMP> other;  ///< with another number
};
Spaces& spaces() {
  static Spaces both;
  return both;
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

float* scratch(int64_t floats) {
  static thread_local Buffer buffer;
  return reinterpret_cast<float*>(buffer.reserve(floats * static_cast<int64_t>(sizeof(float))));
}

}  // namespace llmtrain::host
