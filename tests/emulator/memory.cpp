#include <execinfo.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "emulator/emulator.hpp"
#include "emulator/limits.hpp"

// Device memory is a reserved range of addresses; freed memory is not reused, so that its use is detected.

namespace llmtrain::emulator {

namespace {

constexpr size_t address_space = size_t{4} << 40;
constexpr size_t page = 4096;
constexpr size_t alignment = 256;  // of cudaMalloc

struct Allocation {
  char* first_page;
  size_t pages_bytes;
  size_t bytes;
  mutable bool open = false;  ///< accessible to the current work; protected again after it
};

struct Memory {
  std::recursive_mutex mutex;
  char* base = nullptr;
  char* next = nullptr;
  std::map<const char*, Allocation> device;  ///< by its address
  std::map<const char*, size_t> pinned;
  size_t used = 0;
  std::atomic<int> accesses = 0;
  std::array<char, 512> activity{};  ///< for the signal handler
};

Memory& memory() {
  static auto* one = new Memory();  // outlives all destructors
  return *one;
}

void protect(const Allocation& a, bool usable) {
  if (mprotect(a.first_page, a.pages_bytes, usable ? PROT_READ | PROT_WRITE : PROT_NONE) != 0) fail("mprotect failed");
}

void say(const char* text) {
  const ssize_t written = write(STDERR_FILENO, text, std::strlen(text));
  (void)written;
}

/// Finds the range of `ranges` that contains `data`, or returns the end.
template <class Map>
auto holder(Map& ranges, const void* data) {
  auto after = ranges.upper_bound(static_cast<const char*>(data));
  return after == ranges.begin() ? ranges.end() : std::prev(after);
}

/// Memory of kernels and copies is opened at the first access.
bool open_for_work(const char* address) {
  Memory& m = memory();
  if (m.accesses == 0) return false;
  auto found = m.device.upper_bound(address);  // an allocation may begin within its first page
  for (int neighbours = 0; neighbours < 2; ++neighbours) {
    if (found != m.device.end()) {
      const Allocation& a = found->second;
      if (address >= a.first_page && address < a.first_page + a.pages_bytes) {
        if (std::atomic_ref(a.open).exchange(true)) return true;  // opened by another thread just now
        protect(a, true);
        return true;
      }
    }
    if (found == m.device.begin()) return false;
    --found;
  }
  return false;
}

void on_bad_access(int number, siginfo_t* info, void* /*context*/) {
  const Memory& m = memory();
  const auto* address = static_cast<const char*>(info->si_addr);
  if (m.base != nullptr && address >= m.base && address < m.base + address_space) {
    if (open_for_work(address)) return;
    if (m.accesses == 0) {
      say("emulated GPU: the host touches device memory; the calls that led here:\n");
    } else {
      say("emulated GPU: device memory is touched beyond its end, or after it was freed, by ");
      say(m.activity.data());
      say("; the calls that led here:\n");
    }
    std::array<void*, 40> calls{};
    backtrace_symbols_fd(calls.data(), backtrace(calls.data(), static_cast<int>(calls.size())), STDERR_FILENO);
  }
  std::signal(number, SIG_DFL);  // the access is repeated, and ends the program
}

void start(Memory& m) {
  if (m.base == nullptr) {
    void* space = mmap(nullptr, address_space, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (space == MAP_FAILED) fail("no range of addresses for device memory: see ulimit -v");
    m.base = m.next = static_cast<char*>(space);
  }
}

/// Repeated, since others set the handler too.
void watch_accesses() {
  struct sigaction action {};
  action.sa_sigaction = on_bad_access;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigaction(SIGSEGV, &action, nullptr);
}

}  // namespace

void fail(const std::string& what) {
  say(fmt::format("emulated GPU: {}\n", what).c_str());
  std::abort();
}

int64_t setting(const char* name, int64_t otherwise) {
  const char* given = std::getenv(name);
  return given != nullptr ? std::atoll(given) : otherwise;
}

size_t device_bytes_total() { return static_cast<size_t>(setting("LLMTRAIN_EMULATOR_MEMORY", int64_t{4} << 30)); }
size_t device_bytes_used() { return memory().used; }

bool take_device_bytes(size_t bytes) {
  Memory& m = memory();
  const std::lock_guard lock(m.mutex);
  if (m.used + bytes > device_bytes_total()) return false;
  m.used += bytes;
  return true;
}
void give_back_device_bytes(size_t bytes) {
  Memory& m = memory();
  const std::lock_guard lock(m.mutex);
  m.used -= bytes;
}

void* allocate_device(size_t bytes) {
  Memory& m = memory();
  const std::lock_guard lock(m.mutex);
  start(m);
  watch_accesses();
  if (m.used + bytes > device_bytes_total()) return nullptr;
  const size_t whole = (bytes + alignment - 1) / alignment * alignment;
  const size_t pages_bytes = (whole + page - 1) / page * page;
  if (m.next + pages_bytes + 2 * page > m.base + address_space) fail("the addresses of device memory are used up");
  const Allocation a{m.next + page, pages_bytes, bytes, false};
  m.next += pages_bytes + page;                     // a guard page
  char* data = a.first_page + pages_bytes - whole;  // ends at the page's end
  protect(a, true);
  std::memset(a.first_page, 0xFF, pages_bytes);  // not zero, so that reads of uninitialised memory show; as floats, NaN
  protect(a, false);
  m.device.emplace(data, a);
  m.used += bytes;
  return data;
}

void free_device(void* data) {
  Memory& m = memory();
  const std::lock_guard lock(m.mutex);
  const auto found = m.device.find(static_cast<const char*>(data));
  if (found == m.device.end()) fail("cudaFree of what cudaMalloc has not given, or for the second time");
  const Allocation a = found->second;
  m.device.erase(found);
  m.used -= a.bytes;
  protect(a, false);
  madvise(a.first_page, a.pages_bytes, MADV_DONTNEED);
}

DeviceAccess::DeviceAccess(const std::string& what) {
  Memory& m = memory();
  m.mutex.lock();
  m.activity.fill('\0');
  what.copy(m.activity.data(), m.activity.size() - 1);
  if (m.accesses++ == 0) watch_accesses();
}
DeviceAccess::~DeviceAccess() {
  Memory& m = memory();
  if (--m.accesses == 0) {
    for (const auto& [data, allocation] : m.device) {
      if (std::exchange(allocation.open, false)) protect(allocation, false);
    }
  }
  m.mutex.unlock();
}

// Like the driver: small allocations begin anywhere in a page.
constexpr size_t pinned_shift = 512;

void* allocate_pinned(size_t bytes) {
  auto* block = static_cast<char*>(std::aligned_alloc(page, (bytes + pinned_shift + page - 1) / page * page));
  if (block == nullptr) return nullptr;
  char* data = block + pinned_shift;
  std::memset(data, 0xFF, bytes);
  register_pinned(data, bytes);
  return data;
}
void free_pinned(void* data) {
  unregister_pinned(data);
  std::free(static_cast<char*>(data) - pinned_shift);
}
void register_pinned(const void* data, size_t bytes) {
  Memory& m = memory();
  const std::lock_guard lock(m.mutex);
  m.pinned.emplace(static_cast<const char*>(data), bytes);
}
void unregister_pinned(const void* data) {
  Memory& m = memory();
  const std::lock_guard lock(m.mutex);
  if (m.pinned.erase(static_cast<const char*>(data)) == 0) fail("pinned memory is freed that is not there");
}

void set_device_bytes(void* data, int value, size_t bytes) {
  constexpr size_t large = size_t{1} << 20;
  if (value != 0 || bytes < large) {
    std::memset(data, value, bytes);
    return;
  }
  // Untouched zero pages cost nothing.
  auto* begin = static_cast<char*>(data);
  char* first = begin + (page - reinterpret_cast<uintptr_t>(begin) % page) % page;
  char* last = begin + bytes - reinterpret_cast<uintptr_t>(begin + bytes) % page;
  std::memset(begin, 0, static_cast<size_t>(first - begin));
  madvise(first, static_cast<size_t>(last - first), MADV_DONTNEED);
  std::memset(last, 0, static_cast<size_t>(begin + bytes - last));
}

bool is_device(const void* data) {
  const Memory& m = memory();
  const auto* address = static_cast<const char*>(data);
  return m.base != nullptr && address >= m.base && address < m.base + address_space;
}

bool is_pinned(const void* data) {
  Memory& m = memory();
  const std::lock_guard lock(m.mutex);
  const auto found = holder(m.pinned, data);
  return found != m.pinned.end() && static_cast<const char*>(data) < found->first + found->second;
}

void expect_device(const void* data, size_t bytes, const std::string& what) {
  Memory& m = memory();
  const std::lock_guard lock(m.mutex);
  const auto found = holder(m.device, data);
  if (found != m.device.end() &&
      static_cast<const char*>(data) + bytes <= found->first + std::max<size_t>(found->second.bytes, 1)) {
    return;
  }
  fail(fmt::format("{}: {} bytes at {} are not within one allocation of device memory", what, bytes, data));
}

void expect_no_host_pointers(const void* argument, size_t bytes, const std::string& what) {
  for (size_t i = 0; i + sizeof(uintptr_t) <= bytes; i += sizeof(uintptr_t)) {
    uintptr_t word = 0;
    std::memcpy(&word, static_cast<const char*>(argument) + i, sizeof word);
    if (word < (uintptr_t{1} << 32) || word >= (uintptr_t{1} << 47)) continue;  // not an address of a program
    const auto* data = reinterpret_cast<const void*>(word);
    if (is_device(data) || is_pinned(data)) continue;
    unsigned char resident = 0;
    if (mincore(reinterpret_cast<void*>(word / page * page), 1, &resident) != 0) continue;  // not mapped
    fail(fmt::format("a kernel, {}, is given the address of host memory, in byte {} of its arguments", what, i));
  }
}

}  // namespace llmtrain::emulator
