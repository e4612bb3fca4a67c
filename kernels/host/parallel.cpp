#include "kernels/host/parallel.hpp"

#include <omp.h>

#include <cstdlib>
#include <memory>
#include <new>
#include <optional>

#include "core/error.hpp"

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

struct FreeAligned {
  void operator()(void* p) const { std::free(p); }
};

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
  static thread_local std::unique_ptr<void, FreeAligned> memory;
  static thread_local int64_t capacity = 0;
  if (floats > capacity) {
    const int64_t rounded = (floats + 1023) / 1024 * 1024;
    memory.reset(std::aligned_alloc(64, static_cast<size_t>(rounded) * sizeof(float)));
    if (!memory) throw std::bad_alloc();
    capacity = rounded;
  }
  return static_cast<float*>(memory.get());
}

}  // namespace llmtrain::host
