#include "kernels/host/parallel.hpp"

#include <omp.h>

#include <cstdlib>
#include <memory>
#include <new>
#include <optional>

#include "core/error.hpp"

namespace llmtrain::host {

namespace {

/// An instance with another number of threads than Kokkos was started with.
std::optional<Kokkos::OpenMP>& other_space() {
  static std::optional<Kokkos::OpenMP> space;
  return space;
}

struct FreeAligned {
  void operator()(void* p) const { std::free(p); }
};

}  // namespace

int thread_count() { return omp_in_parallel() ? 1 : omp_get_max_threads(); }

const Kokkos::OpenMP& execution_space() {
  static const Kokkos::OpenMP space;
  const int threads = omp_get_max_threads();
  if (space.concurrency() == threads) return space;
  std::optional<Kokkos::OpenMP>& other = other_space();
  if (!other || other->concurrency() != threads) {
    static const bool hooked = [] {
      Kokkos::push_finalize_hook([] { other_space().reset(); });
      return true;
    }();
    static_cast<void>(hooked);
    other.emplace(threads);
  }
  return *other;
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
