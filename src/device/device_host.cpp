#include <fmt/core.h>
#include <omp.h>
#include <sys/mman.h>
#include <unistd.h>

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <new>
#include <oneapi/dnnl/dnnl.hpp>
#include <utility>

#include "core/machine.hpp"
#include "device/device.hpp"
#include "device/host_memory.hpp"
#include "device/processor.hpp"
#include "device/profile_tools.hpp"

namespace llmtrain {

namespace {

const char* isa_name() {
  if (processor_has(Instructions::amx)) return "AMX bf16";
  if (processor_has(Instructions::avx512_bf16)) return "AVX-512 bf16";
  if (processor_has(Instructions::avx512)) return "AVX-512";
  if (processor_has(Instructions::avx2)) return "AVX2";
#if defined(__aarch64__)
  return "NEON";
#else
  return "baseline";
#endif
}

int64_t page_size() {
  static const int64_t size = sysconf(_SC_PAGESIZE);
  return size;
}

constexpr int64_t max_in_huge_pages = int64_t{256} << 20;

int64_t whole_pages(int64_t bytes) { return (bytes + page_size() - 1) / page_size() * page_size(); }

}  // namespace

const char* device_kind() { return "host"; }

std::string device_description() {
  const int threads = omp_get_max_threads();
  return fmt::format("{}, {} {}, {}", host_processor_name("/"), threads, threads == 1 ? "thread" : "threads",
                     isa_name());
}

std::string device_libraries() {
  const dnnl_version_t* onednn = dnnl_version();
  return fmt::format("Kokkos {}.{}.{}, oneDNN {}.{}.{}", KOKKOS_VERSION / 10000, KOKKOS_VERSION / 100 % 100,
                     KOKKOS_VERSION % 100, onednn->major, onednn->minor, onednn->patch);
}

bool device_fast_bf16() {
  // Intel's AVX-512 has half as many ports for bf16 dot products as for fp32 fused multiply-adds: without tiles bf16 is
  // the slower one there (0.55 x measured). AMD's has as many.
#if defined(__x86_64__)
  return processor_has(Instructions::amx) || (processor_has(Instructions::avx512_bf16) && __builtin_cpu_is("amd") != 0);
#else
  return false;
#endif
}

Stream::Stream() = default;
Stream::~Stream() = default;
void Stream::synchronize() {}

Event::Event() = default;
Event::~Event() = default;
void Event::record(Stream& /*stream*/) {}
void Event::wait(Stream& /*stream*/) {}
bool Event::reached() const { return true; }
void Event::synchronize() {}

void set_wait_observer(WaitObserver* /*observer*/) {}

bool Graph::available() { return false; }
Graph::~Graph() = default;
Graph::Graph(Graph&& other) noexcept : native_(std::exchange(other.native_, nullptr)) {}
Graph& Graph::operator=(Graph&& other) noexcept {
  std::swap(native_, other.native_);
  return *this;
}
void Graph::record(Stream& /*stream*/, const std::function<void()>& /*work*/) { throw Error("the host has no graphs"); }
void Graph::launch(Stream& /*stream*/) { throw Error("the host has no graphs"); }

DeviceBuffer::DeviceBuffer(int64_t bytes) {
  LLMTRAIN_CHECK(bytes >= 0, "negative size of a buffer");
  if (bytes == 0) return;
  const DeviceMemory memory = device_memory();
  if (bytes > memory.available) {
    throw UserError(ExitCode::deck,
                    fmt::format("out of memory: {:.2f} GiB wanted, {:.2f} of {:.2f} GiB are available on this machine; "
                                "take a smaller micro-batch or model, more recomputation, a higher ZeRO stage, or "
                                "fewer ranks per node",
                                static_cast<double>(bytes) / 0x1p30, static_cast<double>(memory.available) / 0x1p30,
                                static_cast<double>(memory.total) / 0x1p30));
  }
  void* data = mmap(nullptr, static_cast<size_t>(whole_pages(bytes)), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) {
    throw UserError(ExitCode::deck, fmt::format("the system refused {:.2f} GiB of memory: {}; see ulimit -v",
                                                static_cast<double>(bytes) / 0x1p30, std::strerror(errno)));
  }
  data_ = data;
  bytes_ = bytes;
  // What is larger stays in small pages: under a hypervisor that hands idle memory back, the first touch of gigabytes
  // in huge pages can take seconds.
  if (bytes <= max_in_huge_pages) madvise(data, static_cast<size_t>(whole_pages(bytes)), MADV_HUGEPAGE);
  volatile char* touched = static_cast<char*>(data);
  const int64_t page = page_size();
#pragma omp parallel for schedule(static)
  for (int64_t offset = 0; offset < bytes; offset += page) touched[offset] = 0;
}

DeviceBuffer::~DeviceBuffer() {
  if (data_ != nullptr) munmap(data_, static_cast<size_t>(whole_pages(bytes_)));
}

DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

PinnedBuffer::PinnedBuffer(int64_t bytes) : data_(bytes > 0 ? std::calloc(1, static_cast<size_t>(bytes)) : nullptr) {
  LLMTRAIN_CHECK(bytes >= 0, "negative size of a buffer");
  if (bytes > 0 && data_ == nullptr) throw std::bad_alloc();
  bytes_ = bytes;
}
void PinnedBuffer::Free::operator()(void* data) const { std::free(data); }

namespace {

/// copy(offset, count) over all bytes, in parallel where that pays.
template <class F>
void in_parallel(int64_t bytes, const F& body) {
  constexpr int64_t block = int64_t{1} << 18;
  if (bytes <= 0) return;
  // A team of one thread would be made and freed each time.
  if (bytes <= 4 * block || omp_get_max_threads() == 1) return body(0, bytes);
#pragma omp parallel for schedule(static)
  for (int64_t offset = 0; offset < bytes; offset += block) body(offset, std::min(block, bytes - offset));
}

void copy(void* to, const void* from, int64_t bytes) {
  in_parallel(bytes, [=](int64_t offset, int64_t count) {
    std::memcpy(static_cast<char*>(to) + offset, static_cast<const char*>(from) + offset, static_cast<size_t>(count));
  });
}

}  // namespace

bool device_memory_is_host() { return true; }

void copy_to_device(void* device, const void* host, int64_t bytes, Stream& /*stream*/) { copy(device, host, bytes); }
void copy_to_host(void* host, const void* device, int64_t bytes, Stream& /*stream*/) { copy(host, device, bytes); }
void copy_on_device(void* to, const void* from, int64_t bytes, Stream& /*stream*/) { copy(to, from, bytes); }
void fill_zero(void* device, int64_t bytes, Stream& /*stream*/) {
  in_parallel(bytes, [=](int64_t offset, int64_t count) {
    std::memset(static_cast<char*>(device) + offset, 0, static_cast<size_t>(count));
  });
}

int64_t device_reserve_bytes() { return 0; }

std::string device_fault() { return {}; }

int64_t device_context_bytes(int64_t processes) {
  int64_t pages = 0, resident = 0, of_files = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident >> of_files;
  return (resident - of_files + of_files / processes) * page_size();
}

int64_t device_process_bytes(int64_t /*processes*/) {
  std::ifstream file("/proc/self/smaps_rollup");
  for (std::string key; file >> key;) {
    int64_t kib = 0;
    if (key == "Pss:" && file >> kib) return kib * 1024;  // proportional: the ranks of a node add up
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return 0;
}

std::string device_address() { return host_name(); }
std::string device_identity() { return host_name() + " " + boot_id(); }

DeviceMemory device_memory() { return host_memory("/"); }

void use_threads(int threads) { omp_set_num_threads(threads); }

DeviceRuntime::DeviceRuntime(int /*node_rank*/, int threads, int /*ranks_of_node*/) {
  LLMTRAIN_CHECK(threads >= 1, "a rank has at least one thread");
  // The table in which Kokkos keeps its threads, in all releases that cmake/Dependencies.cmake accepts; it checks
  // nothing.
  constexpr int max_threads = 512;
  LLMTRAIN_CHECK(threads <= max_threads, "more threads than Kokkos has room for");
  omp_set_dynamic(0);
  omp_set_num_threads(threads);
  Kokkos::initialize(Kokkos::InitializationSettings().set_num_threads(threads).set_disable_warnings(true));
  omp_set_num_threads(threads);
  attach_profile_tools();
}

DeviceRuntime::~DeviceRuntime() {
  detach_profile_tools();
  Kokkos::finalize();
}

}  // namespace llmtrain
