// Preloaded into a program: one of its calls goes wrong.
//
//   LLMTRAIN_FAULT_CALLS  which are counted, of: create write truncate sync rename remove open malloc message (the
//                         first six). open: of files that are there. malloc: by the program, the C++ library and HDF5.
//                         message: MPI_Isend
//   LLMTRAIN_FAULT_PATH   of them those on paths that contain one of these, separated by ':'; with a '$': that end so
//   LLMTRAIN_FAULT_AT     the how-manieth of them, from 1
//   LLMTRAIN_FAULT_RANK   only in this rank of an MPI job (all)
//   LLMTRAIN_FAULT_HOW    kill    the process is killed before it; killjob: and all others that LLMTRAIN_FAULT_JOB
//   names
//                         torn    half of a write is done, then the process is killed
//                         short   half of a write is done, which the caller is told
//                         eio     it fails with EIO (eacces: EACCES; quota: EDQUOT); malloc has no memory
//                         full    it and all later ones that need space fail with ENOSPC
//                         delay   it takes LLMTRAIN_FAULT_MS longer; slow: it and all later ones; stall: and then
//                                 the process is killed
//                         abort, segv, exit, throw, badalloc   what a wrong program does
//                         signal  the process gets signal LLMTRAIN_FAULT_SIGNAL, also at as many of the next calls as
//                                 LLMTRAIN_FAULT_AGAIN says; launcher: the process that started it gets it
//   LLMTRAIN_FAULT_HOW=later   the process is killed LLMTRAIN_FAULT_MS after its start
//   LLMTRAIN_FAULT_JOB    file to which every process adds its number
//   LLMTRAIN_FAULT_COUNT  file (with .RANK behind it) that gets the number of counted calls when the program ends, and
//                         after it a line for each of them, "open 12"

#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <mpi.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <new>
#include <stdexcept>
#include <string_view>
#include <utility>

extern "C" void* __libc_malloc(size_t size);
extern "C" void* __libc_calloc(size_t count, size_t size);

namespace {

enum class Fault { none, fails, half, torn };
enum Kind : unsigned {
  create = 1,
  written = 2,
  truncated = 4,
  synced = 8,
  renamed = 16,
  removed = 32,
  opened = 64,
  memory = 128,
  hdf5_memory = 256,
  sent = 512
};
constexpr std::array names = {"create", "write", "truncate", "sync",       "rename",
                              "remove", "open",  ",malloc",  "hdf5malloc", "message"};
constexpr unsigned changes = create | written | truncated | synced | renamed | removed;

const char* variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}
const char* own_rank() {
  const char* rank = variable("OMPI_COMM_WORLD_RANK");
  return *rank != '\0' ? rank : "0";
}

std::atomic<long> calls{0};
std::array<std::atomic<long>, names.size()> calls_of_kind{};
unsigned kinds = 0;  ///< 0 before begin()

/// Code whose allocations are counted: other libraries (such as MPI) end the process when they have no memory.
struct CodeRange {
  uintptr_t begin, end;
};
std::array<CodeRange, 64> code;
size_t code_ranges = 0;

int note_code(dl_phdr_info* info, size_t /*size*/, void* /*data*/) {
  const std::string_view name = info->dlpi_name;
  const bool hdf5 = name.find("libhdf5") != name.npos, program = name.empty() || name.find("libstdc++") != name.npos;
  const bool ours = ((kinds & hdf5_memory) != 0 && hdf5) || ((kinds & memory) != 0 && program);
  for (int i = 0; ours && i < info->dlpi_phnum && code_ranges < code.size(); ++i) {
    const auto& part = info->dlpi_phdr[i];
    if (part.p_type != PT_LOAD || (part.p_flags & PF_X) == 0) continue;
    const uintptr_t begin = info->dlpi_addr + part.p_vaddr;
    code[code_ranges++] = {begin, begin + part.p_memsz};
  }
  return 0;
}

void kill_later(long milliseconds) {
  sigevent event{};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = SIGKILL;
  timer_t timer = nullptr;
  itimerspec when{};
  when.it_value.tv_sec = milliseconds / 1000;
  when.it_value.tv_nsec = milliseconds % 1000 * 1000000 + 1;
  if (timer_create(CLOCK_MONOTONIC, &event, &timer) == 0) timer_settime(timer, 0, &when, nullptr);
}

struct Injector {
  Injector() {
    if (const char* job = variable("LLMTRAIN_FAULT_JOB"); *job != '\0') {
      if (FILE* file = std::fopen(job, "a")) {
        std::fprintf(file, "%d\n", getpid());
        std::fclose(file);
      }
    }
    const char* wanted = variable("LLMTRAIN_FAULT_RANK");
    if (*wanted != '\0' && std::strcmp(wanted, own_rank()) != 0) return;
    if (std::strcmp(variable("LLMTRAIN_FAULT_HOW"), "later") == 0) kill_later(std::atol(variable("LLMTRAIN_FAULT_MS")));
    char given[256];
    std::snprintf(given, sizeof(given), ",%s", variable("LLMTRAIN_FAULT_CALLS"));
    unsigned counted = 0;
    for (size_t i = 0; i < names.size(); ++i) {
      if (std::strstr(given, names[i]) != nullptr) counted |= 1U << i;
    }
    kinds = counted & (memory | hdf5_memory);  // for note_code
    dl_iterate_phdr(note_code, nullptr);
    counted = counted != 0 ? counted : changes;
    kinds = counted;
  }
  ~Injector() {
    const unsigned counted = std::exchange(kinds, 0);
    const char* path = variable("LLMTRAIN_FAULT_COUNT");
    if (*path == '\0') return;
    char name[4096];
    std::snprintf(name, sizeof(name), "%s.%s", path, own_rank());
    if (FILE* file = std::fopen(name, "w")) {
      std::fprintf(file, "%ld\n", calls.load());
      for (size_t i = 0; i < names.size(); ++i) {
        if ((counted >> i & 1) != 0)
          std::fprintf(file, "%s %ld\n", names[i] + (names[i][0] == ','), calls_of_kind[i].load());
      }
      std::fclose(file);
    }
  }
} injector;

bool path_counts(const char* path) {
  char wanted[4096];
  std::snprintf(wanted, sizeof(wanted), "%s", variable("LLMTRAIN_FAULT_PATH"));
  char* rest = nullptr;
  for (char* part = strtok_r(wanted, ":", &rest); part != nullptr; part = strtok_r(nullptr, ":", &rest)) {
    const size_t length = std::strlen(part), whole = std::strlen(path);
    if (part[length - 1] != '$') {
      if (std::strstr(path, part) != nullptr) return true;
    } else if (whole >= length - 1 && std::strncmp(path + whole - (length - 1), part, length - 1) == 0) {
      return true;
    }
  }
  return false;
}

void kill_job() {
  if (FILE* file = std::fopen(variable("LLMTRAIN_FAULT_JOB"), "r")) {
    for (int process = 0; std::fscanf(file, "%d", &process) == 1;) {
      if (process > 1 && process != getpid()) kill(process, SIGKILL);
    }
    std::fclose(file);
  }
  kill(getpid(), SIGKILL);
}

void wait_a_while() {
  const long milliseconds = std::atol(variable("LLMTRAIN_FAULT_MS"));
  timespec left{milliseconds / 1000, milliseconds % 1000 * 1000000};
  while (nanosleep(&left, &left) != 0) {
  }
}

Fault failed(int code_of_error) {
  errno = code_of_error;
  return Fault::fails;
}

/// Applies the fault to the current call. May not return.
Fault strike(Kind kind) {
  const bool needs_space = (kind & (create | written | memory | hdf5_memory)) != 0;
  const auto number = static_cast<size_t>(std::countr_zero(static_cast<unsigned>(kind)));
  ++calls_of_kind[std::min(number, names.size() - 1)];
  const long now = ++calls, at = std::atol(variable("LLMTRAIN_FAULT_AT"));
  const char* how = variable("LLMTRAIN_FAULT_HOW");
  const auto is = [&](const char* name) { return std::strcmp(how, name) == 0; };
  if (at > 0 && now > at && needs_space && is("full")) return failed(ENOSPC);
  if (at > 0 && now >= at && is("slow")) wait_a_while();
  if (now >= at && now <= at + std::atol(variable("LLMTRAIN_FAULT_AGAIN"))) {
    const int number = std::atoi(variable("LLMTRAIN_FAULT_SIGNAL"));
    if (is("signal")) kill(getpid(), number);
    if (is("launcher")) kill(getppid(), number);
  }
  if (now != at) return Fault::none;
  if (is("kill")) kill(getpid(), SIGKILL);
  if (is("killjob")) kill_job();
  if (is("torn")) return Fault::torn;
  if (is("short")) return Fault::half;
  if (is("eio")) return failed(EIO);
  if (is("eacces")) return failed(EACCES);
  if (is("delay") || is("stall")) wait_a_while();
  if (is("stall")) kill(getpid(), SIGKILL);
  if (is("abort")) std::abort();
  if (is("segv")) std::raise(SIGSEGV);
  if (is("exit")) std::exit(3);
  if (is("throw")) throw std::runtime_error("an injected exception");
  if (is("badalloc")) throw std::bad_alloc();
  if (needs_space && is("full")) return failed(ENOSPC);
  if (needs_space && is("quota")) return failed(EDQUOT);
  return Fault::none;
}

Fault next(Kind kind, const char* path) {
  if ((kinds & kind) == 0 || path == nullptr || !path_counts(path)) return Fault::none;
  return strike(kind);
}

Fault next(Kind kind, int descriptor) {
  if ((kinds & kind) == 0) return Fault::none;
  char link[64], path[4096];
  std::snprintf(link, sizeof(link), "/proc/self/fd/%d", descriptor);
  const ssize_t length = readlink(link, path, sizeof(path) - 1);
  if (length < 0) return Fault::none;
  path[length] = '\0';
  return next(kind, path);
}

/// True if a call without a size must fail; errno then says why.
bool fails(Fault fault) {
  if (fault == Fault::torn) kill(getpid(), SIGKILL);
  return fault == Fault::fails;
}

template <class Function>
Function original(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

/// A write of `count` bytes, where `call(n)` writes n of them.
template <class Call>
ssize_t faulty_write(int descriptor, size_t count, const Call& call) {
  const Fault fault = next(written, descriptor);
  if (fault == Fault::torn) {
    call(count / 2);
    kill(getpid(), SIGKILL);
  }
  if (fault == Fault::half && count > 1) return call(count / 2);
  return fails(fault) ? -1 : call(count);
}

/// The first `bytes` of `parts`, one part after the other.
template <class Call>
ssize_t write_parts(const iovec* parts, int count, size_t bytes, const Call& call) {
  ssize_t done = 0;
  for (int i = 0; i < count && static_cast<size_t>(done) < bytes; ++i) {
    const size_t wanted = std::min(parts[i].iov_len, bytes - static_cast<size_t>(done));
    const ssize_t n = call(parts[i].iov_base, wanted, done);
    if (n < 0) return done > 0 ? done : n;
    done += n;
    if (static_cast<size_t>(n) < wanted) break;
  }
  return done;
}

size_t bytes_of(const iovec* parts, int count) {
  size_t bytes = 0;
  for (int i = 0; i < count; ++i) bytes += parts[i].iov_len;
  return bytes;
}

bool memory_fails(const void* caller) {
  if ((kinds & (memory | hdf5_memory)) == 0) return false;
  const auto at = reinterpret_cast<uintptr_t>(caller);
  for (size_t i = 0; i < code_ranges; ++i) {
    if (at >= code[i].begin && at < code[i].end)
      return strike(static_cast<Kind>(kinds & (memory | hdf5_memory))) == Fault::fails;
  }
  return false;
}

int open_in(const char* symbol, int folder, const char* path, int flags, mode_t mode) {
  const auto real = original<int (*)(int, const char*, int, ...)>(symbol);
  return fails(next((flags & O_CREAT) != 0 ? create : opened, path)) ? -1 : real(folder, path, flags, mode);
}

int open_file(const char* symbol, const char* path, int flags, mode_t mode) {
  const auto real = original<int (*)(const char*, int, ...)>(symbol);
  return fails(next((flags & O_CREAT) != 0 ? create : opened, path)) ? -1 : real(path, flags, mode);
}

mode_t mode_of(int flags, va_list more) { return (flags & O_CREAT) != 0 ? va_arg(more, mode_t) : 0; }

}  // namespace

extern "C" {

void* malloc(size_t size) {
  if (memory_fails(__builtin_return_address(0))) {
    errno = ENOMEM;
    return nullptr;
  }
  return __libc_malloc(size);
}

void* calloc(size_t count, size_t size) {
  if (memory_fails(__builtin_return_address(0))) {
    errno = ENOMEM;
    return nullptr;
  }
  return __libc_calloc(count, size);
}

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

ssize_t writev(int descriptor, const iovec* parts, int count) {
  static const auto real = original<ssize_t (*)(int, const iovec*, int)>("writev");
  static const auto one = original<ssize_t (*)(int, const void*, size_t)>("write");
  const size_t all = bytes_of(parts, count);
  return faulty_write(descriptor, all, [&](size_t n) {
    if (n == all) return real(descriptor, parts, count);
    return write_parts(parts, count, n, [&](const void* data, size_t m, ssize_t) { return one(descriptor, data, m); });
  });
}

ssize_t pwritev(int descriptor, const iovec* parts, int count, off_t offset) {
  static const auto real = original<ssize_t (*)(int, const iovec*, int, off_t)>("pwritev");
  static const auto one = original<ssize_t (*)(int, const void*, size_t, off_t)>("pwrite");
  const size_t all = bytes_of(parts, count);
  return faulty_write(descriptor, all, [&](size_t n) {
    if (n == all) return real(descriptor, parts, count, offset);
    return write_parts(parts, count, n, [&](const void* data, size_t m, ssize_t done) {
      return one(descriptor, data, m, offset + done);
    });
  });
}

int fallocate(int descriptor, int mode, off_t offset, off_t length) {
  static const auto real = original<int (*)(int, int, off_t, off_t)>("fallocate");
  return fails(next(written, descriptor)) ? -1 : real(descriptor, mode, offset, length);
}

int fallocate64(int descriptor, int mode, off64_t offset, off64_t length) {
  static const auto real = original<int (*)(int, int, off64_t, off64_t)>("fallocate64");
  return fails(next(written, descriptor)) ? -1 : real(descriptor, mode, offset, length);
}

int ftruncate(int descriptor, off_t length) {
  static const auto real = original<int (*)(int, off_t)>("ftruncate");
  return fails(next(truncated, descriptor)) ? -1 : real(descriptor, length);
}

int ftruncate64(int descriptor, off64_t length) {
  static const auto real = original<int (*)(int, off64_t)>("ftruncate64");
  return fails(next(truncated, descriptor)) ? -1 : real(descriptor, length);
}

int truncate(const char* path, off_t length) {
  static const auto real = original<int (*)(const char*, off_t)>("truncate");
  return fails(next(truncated, path)) ? -1 : real(path, length);
}

int fsync(int descriptor) {
  static const auto real = original<int (*)(int)>("fsync");
  return fails(next(synced, descriptor)) ? -1 : real(descriptor);
}

int rename(const char* from, const char* to) {
  static const auto real = original<int (*)(const char*, const char*)>("rename");
  return fails(next(renamed, to)) ? -1 : real(from, to);
}

int symlink(const char* target, const char* path) {
  static const auto real = original<int (*)(const char*, const char*)>("symlink");
  return fails(next(create, path)) ? -1 : real(target, path);
}

int mkdir(const char* path, mode_t mode) {
  static const auto real = original<int (*)(const char*, mode_t)>("mkdir");
  return fails(next(create, path)) ? -1 : real(path, mode);
}

int remove(const char* path) {
  static const auto real = original<int (*)(const char*)>("remove");
  return fails(next(removed, path)) ? -1 : real(path);
}

int unlink(const char* path) {
  static const auto real = original<int (*)(const char*)>("unlink");
  return fails(next(removed, path)) ? -1 : real(path);
}

int unlinkat(int folder, const char* path, int flags) {
  static const auto real = original<int (*)(int, const char*, int)>("unlinkat");
  const Fault fault = folder == AT_FDCWD ? next(removed, path) : next(removed, folder);
  return fails(fault) ? -1 : real(folder, path, flags);
}

int MPI_Isend(const void* data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request* request) {
  static const auto real = original<decltype(&PMPI_Isend)>("MPI_Isend");
  if ((kinds & sent) != 0 && fails(strike(sent))) return MPI_ERR_OTHER;
  return real(data, count, type, to, tag, comm, request);
}

int open(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = mode_of(flags, more);
  va_end(more);
  return open_file("open", path, flags, mode);
}

int open64(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = mode_of(flags, more);
  va_end(more);
  return open_file("open64", path, flags, mode);
}

int openat(int folder, const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = mode_of(flags, more);
  va_end(more);
  return open_in("openat", folder, path, flags, mode);
}

// Functions that _FORTIFY_SOURCE substitutes for calls without a mode and with unknown flags.
int __openat_2(int folder, const char* path, int flags) { return open_in("openat", folder, path, flags, 0); }
int __open_2(const char* path, int flags) { return open_file("open", path, flags, 0); }

}  // extern "C"
