#pragma once
// Bounds on the memory of this process.

#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>

namespace llmtrain::test {

/// Peak resident memory of this process so far, bytes.
inline int64_t peak_memory() {
  struct rusage usage {};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} << 10;
}

/// Resident memory of this process, bytes.
inline int64_t resident_memory() {
  int64_t all = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> all >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

/// Bound of the peak for `bytes` of our own: the address sanitizer retains freed memory, the thread sanitizer has a
/// shadow of four times the touched memory.
inline constexpr int64_t with_sanitizer(int64_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
  return 2 * bytes + (int64_t{256} << 20);
#elif defined(__SANITIZE_THREAD__)
  return 6 * bytes;
#else
  return bytes;
#endif
}

}  // namespace llmtrain::test
