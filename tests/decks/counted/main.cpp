// llmtrain with counters of events that a step should not cause: allocations and starts of threads in the whole
// process, its page faults, and C++ allocations, which are not MPI's, from the middle of each step to the middle of the
// next. Micro-kernels of oneDNN before 3.12 allocate, which is not counted. At the end every rank writes them to
// LLMTRAIN_TEST_COUNTS.<rank>, a line for each step. As a control LLMTRAIN_TEST_DOES adds an event to every step:
// allocate, touch (a fresh page) or start (a thread).

#include <dlfcn.h>
#include <oneapi/dnnl/dnnl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <new>
#include <string>
#include <string_view>
#include <thread>

#include "core/error.hpp"
#include "parallel/job/runtime.hpp"
#include "tasks/command_line.hpp"
#include "tasks/program.hpp"
#include "train/run/stop_monitor.hpp"
#include "train/step_hook.hpp"

using namespace llmtrain;

namespace {

constinit std::atomic<int64_t> allocations{0}, threads{0}, own_allocations{0};

/// True if the code at the address is that of a oneDNN whose micro-kernels allocate.
bool is_of_old_onednn(void* code) {
  static const bool old = dnnl_version()->major == 3 && dnnl_version()->minor < 12;
  if (!old) return false;
  const auto library_of = [](const void* address) -> const void* {
    Dl_info found{};
    return dladdr(address, &found) == 0 ? nullptr : found.dli_fbase;
  };
  static const void* onednn = library_of(dnnl_version());  // a constant in the library
  return onednn != nullptr && library_of(code) == onednn;
}

}  // namespace

// The C library's own functions under other names: the definitions here replace the usual ones in all libraries.
extern "C" {
// NOLINTBEGIN(bugprone-reserved-identifier, readability-identifier-naming)
void* __libc_malloc(size_t bytes) noexcept;
void* __libc_calloc(size_t count, size_t bytes) noexcept;
void* __libc_realloc(void* old, size_t bytes) noexcept;
void* __libc_memalign(size_t alignment, size_t bytes) noexcept;
// NOLINTEND(bugprone-reserved-identifier, readability-identifier-naming)

void* malloc(size_t bytes) noexcept {
  ++allocations;
  return __libc_malloc(bytes);
}
void* calloc(size_t count, size_t bytes) noexcept {
  ++allocations;
  return __libc_calloc(count, bytes);
}
void* realloc(void* old, size_t bytes) noexcept {
  ++allocations;
  return __libc_realloc(old, bytes);
}
void* memalign(size_t alignment, size_t bytes) noexcept {
  ++allocations;
  return __libc_memalign(alignment, bytes);
}
void* aligned_alloc(size_t alignment, size_t bytes) noexcept { return memalign(alignment, bytes); }
int posix_memalign(void** to, size_t alignment, size_t bytes) noexcept {
  *to = memalign(alignment, bytes);
  return *to == nullptr ? ENOMEM : 0;
}

using ThreadBody = void* (*)(void*);
int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, ThreadBody body, void* argument) noexcept {
  ++threads;
  static const auto create = reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
  return create(thread, attributes, body, argument);
}
}

// All other forms of new and delete call these.
void* operator new(size_t bytes) {
  const bool counts = !is_of_old_onednn(__builtin_return_address(0));
  if (counts) ++own_allocations;
  void* memory = counts ? malloc(bytes) : __libc_malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void* operator new(size_t bytes, std::align_val_t alignment) {
  ++own_allocations;
  void* memory = memalign(static_cast<size_t>(alignment), bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { free(memory); }
void operator delete(void* memory, size_t /*bytes*/) noexcept { free(memory); }
void operator delete(void* memory, std::align_val_t /*alignment*/) noexcept { free(memory); }
void operator delete(void* memory, size_t /*bytes*/, std::align_val_t /*alignment*/) noexcept { free(memory); }

namespace {

struct Counts {
  int64_t allocations, faults, threads, own;
};

Counts counts_now() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return {allocations, usage.ru_minflt + usage.ru_majflt, threads, own_allocations};
}

constexpr size_t max_steps = 256;
std::array<Counts, max_steps> at_step;
size_t steps_seen = 0;
int own_rank = 0;
std::string_view does;

void note_step(const StepUnderWay& step) {
  own_rank = step.rank;
  if (steps_seen < max_steps) at_step[steps_seen++] = counts_now();
  constexpr size_t page = 4096;
  if (does == "allocate") {
    void* volatile memory = ::operator new(page);
    ::operator delete(memory);
  } else if (does == "touch") {
    void* memory = mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    LLMTRAIN_CHECK(memory != MAP_FAILED, "no page");
    *static_cast<volatile char*>(memory) = 1;
    munmap(memory, page);
  } else if (does == "start") {
    std::thread([] {}).join();
  }
}

void write_counts(const std::string& path) {
  std::ofstream file(path + "." + std::to_string(own_rank));
  for (size_t i = 1; i < steps_seen; ++i) {
    const Counts &a = at_step[i - 1], &b = at_step[i];
    file << b.allocations - a.allocations << ' ' << b.faults - a.faults << ' ' << b.threads - a.threads << ' '
         << b.own - a.own << '\n';
  }
}

}  // namespace

int main(int argc, char** argv) {
  install_signal_handlers();
  try {
    const char* path = std::getenv("LLMTRAIN_TEST_COUNTS");
    const char* what = std::getenv("LLMTRAIN_TEST_DOES");
    if (path == nullptr) throw UserError(ExitCode::command_line, "LLMTRAIN_TEST_COUNTS names no file");
    does = what != nullptr ? what : "";
    step_hook = note_step;
    const CommandLine command = parse_command_line(argc, argv);
    Runtime runtime(argc, argv);
    const int code = runtime.guard([&] { return run_program(command, runtime); });
    write_counts(path);
    return code;
  } catch (const UserError& error) {
    print_as_first_process(std::string("llmtrain: ") + error.what() + "\n");
    return static_cast<int>(error.code());
  }
}
