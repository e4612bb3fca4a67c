#pragma once
// Parallel loops on the host. The number of threads is OpenMP's (omp_set_num_threads), so that oneDNN, Kokkos and plain
// OpenMP loops agree. No loop may let a result depend on which thread took which index.

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/host/workspace.hpp"

namespace llmtrain::host {

/// The Kokkos instance with omp_get_max_threads() threads.
const Kokkos::OpenMP& execution_space();
int thread_count();

/// body(i) for i in [0, count); every thread takes one contiguous range.
template <class Body>
void parallel_for(int64_t count, const Body& body) {
  if (count <= 1 || thread_count() == 1) {
    for (int64_t i = 0; i < count; ++i) body(i);
    return;
  }
  using Policy = Kokkos::RangePolicy<Kokkos::OpenMP, Kokkos::IndexType<int64_t>>;
  Kokkos::parallel_for(Policy(execution_space(), 0, count), body);
}

/// body(begin, end) over [0, count) in blocks of `block`; only the last one may be shorter.
template <class Body>
void parallel_blocks(int64_t count, int64_t block, const Body& body) {
  parallel_for((count + block - 1) / block,
               [&body, count, block](int64_t b) { body(b * block, std::min(count, (b + 1) * block)); });
}

/// Elements of an elementwise pass that one loop body takes; a multiple of every vector width.
inline constexpr int64_t elementwise_block = 4096;

}  // namespace llmtrain::host
