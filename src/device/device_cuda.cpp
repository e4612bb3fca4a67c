#include <cuda_runtime.h>
#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <exception>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/activity.hpp"
#include "core/machine.hpp"
#include "device/choose_device.hpp"
#include "device/device.hpp"
#include "device/profile_tools.hpp"

namespace llmtrain {

namespace {

/// The GPU of this process. CUDA gives every new thread the node's first GPU, and many calls create a context on the
/// GPU of their thread: each function that allocates, copies or queries calls use_device() first.
int device_of_process = 0;
/// "0000:3B:00.0 of node17", read at the start, since a broken GPU does not answer.
std::string name_of_process_device;
/// Free memory of the GPU when this process had only its context there.
int64_t available_at_start = 0;
std::atomic<int64_t> allocated = 0;  ///< bytes held by DeviceBuffers

/// Tells errors of the machine from errors of the program.
std::string advice(cudaError_t code) {
  constexpr int contained = 226;  // cudaErrorContained of CUDA 12.4 and newer
  if (code != cudaErrorECCUncorrectable && code != cudaErrorNvlinkUncorrectable &&
      static_cast<int>(code) != contained) {
    return {};
  }
  return fmt::format(
      "; GPU {} is faulty (see nvidia-smi -q, and Xid lines in dmesg): exclude the node; the same command resumes from "
      "the newest checkpoint",
      name_of_process_device);
}

[[noreturn]] void throw_out_of_memory(const std::string& what) {
  cudaGetLastError();  // keeps the next call from returning this error
  size_t available = 0, total = 0;
  std::string there;  // empty where the query itself runs out of memory
  if (cudaMemGetInfo(&available, &total) == cudaSuccess) {
    there = fmt::format("; {:.2f} of {:.2f} GiB are available", static_cast<double>(available) / 0x1p30,
                        static_cast<double>(total) / 0x1p30);
  }
  throw UserError(ExitCode::deck,
                  fmt::format("out of GPU memory: {}{}; use a smaller micro-batch or model, more recomputation, or a "
                              "higher ZeRO stage",
                              what, there));
}

void cuda_check(cudaError_t code, const char* call) {
  if (code == cudaSuccess) return;
  if (code == cudaErrorNoDevice || code == cudaErrorInsufficientDriver) {
    throw UserError(ExitCode::no_device, fmt::format("{}: there is no GPU: {}", call, cudaGetErrorString(code)));
  }
  if (code == cudaErrorMemoryAllocation) throw_out_of_memory(fmt::format("{} needs GPU memory", call));
  throw Error(
      fmt::format("{} failed: {} ({}){}", call, cudaGetErrorString(code), cudaGetErrorName(code), advice(code)));
}

void use_device() {
  thread_local int of_thread = -1;
  if (of_thread == device_of_process) return;
  cuda_check(cudaSetDevice(device_of_process), "cudaSetDevice");
  of_thread = device_of_process;
}

cudaStream_t raw(const Stream& stream) { return static_cast<cudaStream_t>(stream.native()); }

thread_local WaitObserver* observer = nullptr;

/// A long wait, reported to the watchdog and the observer.
class LongWait {
 public:
  LongWait() = default;
  ~LongWait() {
    if (observer != nullptr) observer->waited();
  }
  LongWait(const LongWait&) = delete;
  LongWait& operator=(const LongWait&) = delete;

 private:
  DeviceWait mark_;
};

/// Polls until `code()` is not cudaErrorNotReady. The library's own waits never return from a kernel that hangs.
template <class F>
void wait_for(const F& code, const char* what) {
  using Clock = std::chrono::steady_clock;
  constexpr auto between_looks = std::chrono::milliseconds(5);
  std::optional<LongWait> wait;
  Clock::time_point look = Clock::now() + between_looks;
  cudaError_t state = cudaSuccess;
  while ((state = code()) == cudaErrorNotReady) {
    cudaGetLastError();  // the runtime keeps it like an error; libraries that check after their launches would see it
    if (Clock::now() >= look) {
      if (!wait) wait.emplace();
      if (observer != nullptr) observer->waiting();
      look = Clock::now() + between_looks;
    }
    std::this_thread::yield();
  }
  cuda_check(state, what);
}

std::string address_of(int device) {
  std::array<char, 32> bus{};
  cuda_check(cudaDeviceGetPCIBusId(bus.data(), static_cast<int>(bus.size()), device), "cudaDeviceGetPCIBusId");
  return bus.data();
}

/// Freeing waits for the device, which may wait for other ranks. While an exception unwinds the program, memory is kept
/// until the end of the process.
bool may_wait() { return std::uncaught_exceptions() == 0; }

cudaDeviceProp current_properties() {
  int device = 0;
  cudaDeviceProp properties{};
  cuda_check(cudaGetDevice(&device), "cudaGetDevice");
  cuda_check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  return properties;
}

// CUDA infers the kind from the addresses.
void copy(void* to, const void* from, int64_t bytes, Stream& stream) {
  if (bytes <= 0) return;
  use_device();
  cuda_check(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, raw(stream)), "cudaMemcpyAsync");
}

bool is_pageable(const void* host) {
  use_device();  // else the query would create a context on the node's first GPU
  cudaPointerAttributes attributes{};
  cuda_check(cudaPointerGetAttributes(&attributes, host), "cudaPointerGetAttributes");
  return attributes.type == cudaMemoryTypeUnregistered;
}

}  // namespace

const char* device_kind() { return "cuda"; }

std::string device_description() {
  const cudaDeviceProp properties = current_properties();
  return fmt::format("{}, {:.0f} GiB, compute capability {}.{}", properties.name,
                     static_cast<double>(properties.totalGlobalMem) / 0x1p30, properties.major, properties.minor);
}

std::string device_libraries() {
  int runtime = 0;
  cudaRuntimeGetVersion(&runtime);  // works without a driver
  return fmt::format("CUDA {}.{}", runtime / 1000, runtime / 10 % 100);
}

bool device_fast_bf16() {
  int count = 0;
  // without a device, assume one that the build targets
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) return true;
  return current_properties().major >= 8;  // tensor cores support bf16 from Ampere on
}

Stream::Stream() {
  use_device();
  cudaStream_t stream = nullptr;
  cuda_check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  native_ = stream;
}
Stream::~Stream() { cudaStreamDestroy(static_cast<cudaStream_t>(native_)); }
void Stream::synchronize() {
  use_device();
  wait_for([this] { return cudaStreamQuery(raw(*this)); }, "work on the GPU");
}

Event::Event() {
  use_device();
  cudaEvent_t event = nullptr;
  cuda_check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  native_ = event;
}
Event::~Event() { cudaEventDestroy(static_cast<cudaEvent_t>(native_)); }
void Event::record(Stream& stream) {
  cuda_check(cudaEventRecord(static_cast<cudaEvent_t>(native_), raw(stream)), "cudaEventRecord");
}
void Event::wait(Stream& stream) {
  cuda_check(cudaStreamWaitEvent(raw(stream), static_cast<cudaEvent_t>(native_), 0), "cudaStreamWaitEvent");
}
bool Event::reached() const {
  const cudaError_t code = cudaEventQuery(static_cast<cudaEvent_t>(native_));
  if (code == cudaErrorNotReady) {
    cudaGetLastError();  // see wait_for
    return false;
  }
  cuda_check(code, "cudaEventQuery");
  return true;
}
void Event::synchronize() {
  wait_for([this] { return cudaEventQuery(static_cast<cudaEvent_t>(native_)); }, "work on the GPU");
}

void set_wait_observer(WaitObserver* given) { observer = given; }

bool Graph::available() { return true; }
Graph::~Graph() {
  if (native_ != nullptr) cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(native_));
}
Graph::Graph(Graph&& other) noexcept : native_(std::exchange(other.native_, nullptr)) {}
Graph& Graph::operator=(Graph&& other) noexcept {
  std::swap(native_, other.native_);
  return *this;
}

void Graph::record(Stream& stream, const std::function<void()>& work) {
  LLMTRAIN_CHECK(!recorded(), "the graph is already recorded");
  // Other threads may call CUDA meanwhile.
  cuda_check(cudaStreamBeginCapture(raw(stream), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  cudaGraph_t graph = nullptr;
  try {
    work();
  } catch (...) {
    if (cudaStreamEndCapture(raw(stream), &graph) == cudaSuccess) cudaGraphDestroy(graph);
    cudaGetLastError();  // error of the failed recording
    throw;
  }
  cuda_check(cudaStreamEndCapture(raw(stream), &graph), "cudaStreamEndCapture");
  cudaGraphExec_t executable = nullptr;
  cudaError_t code = cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  if (code == cudaSuccess) {
    native_ = executable;
    code = cudaGraphUpload(executable, raw(stream));  // takes memory now, not in the first launch
  }
  if (code == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // keeps the next call from returning this error
    *this = Graph();
    return;
  }
  cuda_check(code, "cudaGraphInstantiate");
}

void Graph::launch(Stream& stream) {
  cuda_check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(native_), raw(stream)), "cudaGraphLaunch");
}

DeviceBuffer::DeviceBuffer(int64_t bytes) {
  LLMTRAIN_CHECK(bytes >= 0, "negative size of a buffer");
  if (bytes == 0) return;
  use_device();
  const cudaError_t code = cudaMalloc(&data_, static_cast<size_t>(bytes));
  if (code == cudaErrorMemoryAllocation) {
    throw_out_of_memory(fmt::format("{:.2f} GiB are needed", static_cast<double>(bytes) / 0x1p30));
  }
  cuda_check(code, "cudaMalloc");
  bytes_ = bytes;
  allocated += bytes;
  // A separate stream, since work in other streams may wait for other ranks.
  Stream stream;
  fill_zero(data_, bytes, stream);
  stream.synchronize();
}

DeviceBuffer::~DeviceBuffer() {
  if (data_ == nullptr || !may_wait()) return;
  cudaFree(data_);
  allocated -= bytes_;
}

DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

PinnedBuffer::PinnedBuffer(int64_t bytes) {
  LLMTRAIN_CHECK(bytes >= 0, "negative size of a buffer");
  if (bytes == 0) return;
  use_device();
  void* data = nullptr;
  const cudaError_t code = cudaMallocHost(&data, static_cast<size_t>(bytes));
  if (code == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // keeps the next call from returning this error
    throw UserError(ExitCode::deck, fmt::format("out of host memory: the system did not lock {:.2f} GiB for transfers "
                                                "with the GPU; raise ulimit -l, or the memory of the job",
                                                static_cast<double>(bytes) / 0x1p30));
  }
  cuda_check(code, "cudaMallocHost");
  data_.reset(data);
  bytes_ = bytes;
  std::memset(data, 0, static_cast<size_t>(bytes));
}
void PinnedBuffer::Free::operator()(void* data) const {
  if (may_wait()) cudaFreeHost(data);
}

bool device_memory_is_host() { return false; }

void copy_to_device(void* device, const void* host, int64_t bytes, Stream& stream) {
  copy(device, host, bytes, stream);
}
void copy_to_host(void* host, const void* device, int64_t bytes, Stream& stream) {
  // The library's own copy waits for the stream unobserved, and never returns from a kernel that hangs.
  if (bytes > 0 && is_pageable(host)) stream.synchronize();
  copy(host, device, bytes, stream);
}
void copy_on_device(void* to, const void* from, int64_t bytes, Stream& stream) { copy(to, from, bytes, stream); }
void fill_zero(void* device, int64_t bytes, Stream& stream) {
  if (bytes <= 0) return;
  use_device();
  cuda_check(cudaMemsetAsync(device, 0, static_cast<size_t>(bytes), raw(stream)), "cudaMemsetAsync");
}

DeviceMemory device_memory() {
  use_device();
  size_t available = 0, total = 0;
  cuda_check(cudaMemGetInfo(&available, &total), "cudaMemGetInfo");
  return {static_cast<int64_t>(available), static_cast<int64_t>(total)};
}

// Measured for a process with lazily loaded modules, on GPUs of 80 GiB and more; other drivers and GPUs differ by some
// 100 MiB.
int64_t device_context_bytes(int64_t /*processes*/) { return int64_t{512} << 20; }

int64_t device_process_bytes(int64_t processes) {
  const int64_t own = allocated;
  const int64_t gone = processes > 1 ? own : available_at_start - device_memory().available;
  return device_context_bytes(processes) + std::max(own, gone);  // others may have freed some
}

int64_t device_reserve_bytes() { return int64_t{256} << 20; }

std::string device_address() {
  int device = 0;
  cuda_check(cudaGetDevice(&device), "cudaGetDevice");
  return fmt::format("GPU {} of {}", address_of(device), host_name());
}

std::string device_identity() {
  const cudaUUID_t uuid = current_properties().uuid;
  std::string text;
  for (const char byte : uuid.bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return text;
}

// An error of a kernel surfaces in the next call of any library, in that library's words.
std::string device_fault() {
  const cudaError_t last = cudaPeekAtLastError();
  if (last != cudaSuccess) return advice(last);
  const cudaError_t state = cudaStreamQuery(nullptr);
  if (state == cudaErrorNotReady) cudaGetLastError();  // keeps the next call from returning this error
  return advice(state);
}

void use_threads(int threads) { omp_set_num_threads(threads); }

namespace {

/// Supported architectures (CMakeLists.txt): kernels use asynchronous copies and bf16 products.
constexpr int oldest_capability = 8;

/// A workstation may have an old GPU for its screen.
bool runs_our_kernels(int device) {
  int major = 0;
  cuda_check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "cudaDeviceGetAttribute");
  return major >= oldest_capability;
}

/// Creates the context, so that an error surfaces here.
void start_device() {
  const cudaError_t chosen = cudaSetDevice(device_of_process);
  const cudaError_t code = chosen == cudaSuccess ? cudaFree(nullptr) : chosen;
  if (code == cudaSuccess) return;
  throw UserError(
      ExitCode::no_device,
      fmt::format(
          "GPU {} cannot be initialised: {} ({}): another process may use it exclusively (compute mode "
          "EXCLUSIVE_PROCESS needs one rank per GPU, or MPS) or fill its memory; see nvidia-smi, or exclude the node{}",
          name_of_process_device, cudaGetErrorString(code), cudaGetErrorName(code), advice(code)));
}

}  // namespace

DeviceRuntime::DeviceRuntime(int node_rank, int threads, int ranks_of_node) {
  // Threads for updates on the host (offloading); without a limit every rank takes all cores that it may run on.
  omp_set_dynamic(0);
  omp_set_num_threads(threads);
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code != cudaSuccess || count == 0) {
    throw UserError(ExitCode::no_device,
                    fmt::format("this build of llmtrain computes on NVIDIA GPUs and finds none on this machine "
                                "({}: {}): run it on a machine with a GPU (under Slurm: --gpus-per-task=1), check the "
                                "driver with nvidia-smi and CUDA_VISIBLE_DEVICES, or use the host build",
                                host_name(), code != cudaSuccess ? cudaGetErrorString(code) : "no device is visible"));
  }
  std::vector<int> devices;
  std::vector<std::string> addresses;
  for (int device = 0; device < count; ++device) {
    if (!runs_our_kernels(device)) continue;
    devices.push_back(device);
    addresses.push_back(address_of(device));
  }
  if (devices.empty()) {
    throw UserError(ExitCode::no_device,
                    fmt::format("the GPUs of {} are too old: llmtrain needs compute capability {}.0 or newer (NVIDIA "
                                "Ampere, as A100), see nvidia-smi --query-gpu=name,compute_cap --format=csv; use "
                                "another node, or the host build",
                                host_name(), oldest_capability));
  }
  const auto chosen = static_cast<size_t>(choose_device(addresses, node_rank, ranks_of_node));
  device_of_process = devices[chosen];
  name_of_process_device = fmt::format("{} of {}", addresses[chosen], host_name());
  start_device();
  available_at_start = device_memory().available;
  attach_profile_tools();
}

DeviceRuntime::~DeviceRuntime() { detach_profile_tools(); }

}  // namespace llmtrain
