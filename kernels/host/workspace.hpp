#pragma once
// Temporary memory of kernels on the host.

#include <cstdint>

namespace llmtrain::host {

/// Temporary memory of the calling thread, page-aligned; the next call hands out the same memory. It is what was lent
/// (kernels/workspace.hpp) or, where that does not suffice, memory that only grows.
char* workspace(int64_t bytes);
inline float* scratch(int64_t floats) {
  return reinterpret_cast<float*>(workspace(floats * static_cast<int64_t>(sizeof(float))));
}
void lend_workspace(char* memory, int64_t bytes);
/// The most that the calling thread has asked for since memory was lent to it.
int64_t workspace_peak();
inline constexpr int64_t workspace_alignment = 4096;

}  // namespace llmtrain::host
