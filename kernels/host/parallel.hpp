#pragma once
// Parallel loops on the host. The number of threads is OpenMP's (omp_set_num_threads), so that oneDNN, Kokkos and plain
// OpenMP loops agree. The result of a loop must not depend on the assignment of indices to threads.

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace llmtrain::host {

/// The Kokkos instance with omp_get_max_threads() threads.
const Kokkos::OpenMP& execution_space();
int thread_count();

/// Calls body(i) for i in [0, count); every thread has one contiguous range.
template <class Body>
void parallel_for(int64_t count, const Body& body) {
  if (count <= 1 || thread_count() == 1) {
    for (int64_t i = 0; i < count; ++i) body(i);
    return;
  }
  using Policy = Kokkos::RangePolicy<Kokkos::OpenMP, Kokkos::IndexType<int64_t>>;
  Kokkos::parallel_for(Policy(execution_space(), 0, count), body);
}

/// Calls body(begin, end) over [0, count) in blocks of `block`; only the last one may be shorter.
template <class Body>
void parallel_blocks(int64_t count, int64_t block, const Body& body) {
  parallel_for((count + block - 1) / block,
               [&body, count, block](int64_t b) { body(b * block, std::min(count, (b + 1) * block)); });
}

/// Temporary memory of the calling thread, page-aligned; the next call returns the same memory. It is the memory
/// of set_workspace() or, if that is too small, memory that only grows.
char* workspace(int64_t bytes);
inline float* scratch(int64_t floats) {
  return reinterpret_cast<float*>(workspace(floats * static_cast<int64_t>(sizeof(float))));
}
void set_workspace(char* memory, int64_t bytes);
/// Maximum bytes that the calling thread has requested since set_workspace().
int64_t workspace_peak();
inline constexpr int64_t workspace_alignment = 4096;

/// Elements per loop body of an elementwise pass; a multiple of every vector width.
inline constexpr int64_t elementwise_block = 4096;

}  // namespace llmtrain::host
