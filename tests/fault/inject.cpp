// Preloaded into a program: one of its file operations goes wrong.
//
//   LLMTRAIN_FAULT_PATH   operations on paths that contain this are counted
//   LLMTRAIN_FAULT_AT     the how-manieth of them, from 1
//   LLMTRAIN_FAULT_HOW    kill    the process is killed before it
//                         torn    half of a write is done, then the process is killed
//                         short   half of a write is done, which the caller is told
//                         eio     it fails; later ones do not
//                         full    it and all later ones that need space fail with ENOSPC
//   LLMTRAIN_FAULT_RANK   only in this rank of an MPI job (all)
//   LLMTRAIN_FAULT_COUNT  file that gets the number of operations when the program ends

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

enum class Fault { none, eio, enospc, half, torn };

const char* variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

std::atomic<long> operations{0};

struct Counter {
  ~Counter() {
    const char* path = variable("LLMTRAIN_FAULT_COUNT");
    if (*path == '\0') return;
    if (FILE* file = std::fopen(path, "w")) {
      std::fprintf(file, "%ld\n", operations.load());
      std::fclose(file);
    }
  }
} counter;

bool of_this_rank() {
  const char* wanted = variable("LLMTRAIN_FAULT_RANK");
  return *wanted == '\0' || std::strcmp(wanted, variable("OMPI_COMM_WORLD_RANK")) == 0;
}

/// What happens to an operation on `path`.
Fault next(const char* path, bool needs_space) {
  const char* wanted = variable("LLMTRAIN_FAULT_PATH");
  if (path == nullptr || *wanted == '\0' || std::strstr(path, wanted) == nullptr || !of_this_rank()) return Fault::none;
  const long now = ++operations, at = std::atol(variable("LLMTRAIN_FAULT_AT"));
  const char* how = variable("LLMTRAIN_FAULT_HOW");
  if (at > 0 && now > at && needs_space && std::strcmp(how, "full") == 0) return Fault::enospc;
  if (now != at) return Fault::none;
  if (std::strcmp(how, "kill") == 0) kill(getpid(), SIGKILL);
  if (std::strcmp(how, "torn") == 0) return Fault::torn;
  if (std::strcmp(how, "short") == 0) return Fault::half;
  if (std::strcmp(how, "eio") == 0) return Fault::eio;
  return needs_space ? Fault::enospc : Fault::none;
}

Fault next(int descriptor, bool needs_space) {
  char link[64], path[4096];
  std::snprintf(link, sizeof(link), "/proc/self/fd/%d", descriptor);
  const ssize_t length = readlink(link, path, sizeof(path) - 1);
  if (length < 0) return Fault::none;
  path[length] = '\0';
  return next(path, needs_space);
}

/// Fails a call without a size; true when it is not to be made.
bool fails(Fault fault) {
  if (fault == Fault::torn) kill(getpid(), SIGKILL);
  if (fault != Fault::eio && fault != Fault::enospc) return false;
  errno = fault == Fault::eio ? EIO : ENOSPC;
  return true;
}

template <class Function>
Function original(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

/// A write of `count` bytes, where `call(n)` writes n of them.
template <class Call>
ssize_t faulty_write(int descriptor, size_t count, const Call& call) {
  const Fault fault = next(descriptor, true);
  if (fault == Fault::torn) {
    call(count / 2);
    kill(getpid(), SIGKILL);
  }
  if (fault == Fault::half && count > 1) return call(count / 2);
  return fails(fault) ? -1 : call(count);
}

}  // namespace

extern "C" {

ssize_t write(int descriptor, const void* data, size_t count) {
  static const auto real = original<ssize_t (*)(int, const void*, size_t)>("write");
  return faulty_write(descriptor, count, [&](size_t n) { return real(descriptor, data, n); });
}

ssize_t pwrite(int descriptor, const void* data, size_t count, off_t offset) {
  static const auto real = original<ssize_t (*)(int, const void*, size_t, off_t)>("pwrite");
  return faulty_write(descriptor, count, [&](size_t n) { return real(descriptor, data, n, offset); });
}

ssize_t pwrite64(int descriptor, const void* data, size_t count, off64_t offset) {
  static const auto real = original<ssize_t (*)(int, const void*, size_t, off64_t)>("pwrite64");
  return faulty_write(descriptor, count, [&](size_t n) { return real(descriptor, data, n, offset); });
}

int fallocate(int descriptor, int mode, off_t offset, off_t length) {
  static const auto real = original<int (*)(int, int, off_t, off_t)>("fallocate");
  return fails(next(descriptor, true)) ? -1 : real(descriptor, mode, offset, length);
}

int fallocate64(int descriptor, int mode, off64_t offset, off64_t length) {
  static const auto real = original<int (*)(int, int, off64_t, off64_t)>("fallocate64");
  return fails(next(descriptor, true)) ? -1 : real(descriptor, mode, offset, length);
}

int ftruncate(int descriptor, off_t length) {
  static const auto real = original<int (*)(int, off_t)>("ftruncate");
  return fails(next(descriptor, false)) ? -1 : real(descriptor, length);
}

int ftruncate64(int descriptor, off64_t length) {
  static const auto real = original<int (*)(int, off64_t)>("ftruncate64");
  return fails(next(descriptor, false)) ? -1 : real(descriptor, length);
}

int truncate(const char* path, off_t length) {
  static const auto real = original<int (*)(const char*, off_t)>("truncate");
  return fails(next(path, false)) ? -1 : real(path, length);
}

int fsync(int descriptor) {
  static const auto real = original<int (*)(int)>("fsync");
  return fails(next(descriptor, false)) ? -1 : real(descriptor);
}

int rename(const char* from, const char* to) {
  static const auto real = original<int (*)(const char*, const char*)>("rename");
  return fails(next(to, false)) ? -1 : real(from, to);
}

int mkdir(const char* path, mode_t mode) {
  static const auto real = original<int (*)(const char*, mode_t)>("mkdir");
  return fails(next(path, true)) ? -1 : real(path, mode);
}

int unlink(const char* path) {
  static const auto real = original<int (*)(const char*)>("unlink");
  return fails(next(path, false)) ? -1 : real(path);
}

int unlinkat(int folder, const char* path, int flags) {
  static const auto real = original<int (*)(int, const char*, int)>("unlinkat");
  return fails(next(folder, false)) ? -1 : real(folder, path, flags);
}

int open(const char* path, int flags, ...) {
  static const auto real = original<int (*)(const char*, int, ...)>("open");
  va_list more;
  va_start(more, flags);
  const auto mode = (flags & O_CREAT) != 0 ? va_arg(more, mode_t) : 0;
  va_end(more);
  return (flags & O_CREAT) != 0 && fails(next(path, true)) ? -1 : real(path, flags, mode);
}

int open64(const char* path, int flags, ...) {
  static const auto real = original<int (*)(const char*, int, ...)>("open64");
  va_list more;
  va_start(more, flags);
  const auto mode = (flags & O_CREAT) != 0 ? va_arg(more, mode_t) : 0;
  va_end(more);
  return (flags & O_CREAT) != 0 && fails(next(path, true)) ? -1 : real(path, flags, mode);
}

}  // extern "C"
