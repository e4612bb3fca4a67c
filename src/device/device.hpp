#pragma once
// The compute device: memory, ordering and copies. device_host.cpp and device_cuda.cpp implement it; no other file
// depends on which one is linked.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "core/tensor.hpp"

namespace llmtrain {

/// Name of the device this program was built for: "host" or "cuda".
const char* device_kind();
/// Description, e.g. "AMD EPYC 9B14, 2 threads, AVX-512 bf16" or "NVIDIA H200".
std::string device_description();
/// Compute libraries with versions: "Kokkos 5.2.2, oneDNN 3.12.1". Needs no device.
std::string device_libraries();
/// True if the host can dereference pointers to device memory.
bool device_memory_is_host();
/// True if the device multiplies bf16 matrices faster than fp32 ones (bf16_products_are_fast() also considers the
/// libraries). Without a device, the answer holds for the devices that the build targets, for use in plans.
bool device_fast_bf16();

/// An ordered queue of work. On the host work runs inline, so that every call has completed when it returns.
class Stream {
 public:
  Stream();
  ~Stream();  // NOLINT(performance-trivially-destructible): not trivial on a GPU
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  void synchronize();                       ///< waits on the host for all work in the stream; see WaitObserver
  void* native() const { return native_; }  ///< cudaStream_t, null on the host

 private:
  void* native_ = nullptr;
};

/// A point in a stream that another stream can wait for.
class Event {
 public:
  Event();
  ~Event();  // NOLINT(performance-trivially-destructible): not trivial on a GPU
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record(Stream& stream);
  void wait(Stream& stream);
  bool reached() const;  ///< true also if nothing was recorded
  void synchronize();    ///< waits on the host; see WaitObserver

 private:
  void* native_ = nullptr;
};

/// Observer of host waits. Work of the device may never end: a transfer whose peer is lost, a kernel that hangs. While
/// the host waits for the device, it polls, and calls the observer every few milliseconds.
class WaitObserver {
 public:
  virtual ~WaitObserver() = default;
  virtual void waiting() = 0;          ///< may throw, which ends the wait
  virtual void waited() noexcept = 0;  ///< called at the end of the wait, if waiting() was called in it
};
/// Sets the observer of the calling thread, which must outlive its registration. Null: none.
void set_wait_observer(WaitObserver* observer);

/// Owning device memory, 64-byte (host: page) aligned, zero-filled; on the host touched in parallel at creation.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  explicit DeviceBuffer(int64_t bytes);
  ~DeviceBuffer();
  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;
  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

/// Owning host memory that the device accesses asynchronously (pinned), zero-filled. Plain memory on the host.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  explicit PinnedBuffer(int64_t bytes);
  void* data() const { return data_.get(); }
  int64_t bytes() const { return data_ != nullptr ? bytes_ : 0; }

 private:
  struct Free {
    void operator()(void* data) const;
  };
  std::unique_ptr<void, Free> data_;
  int64_t bytes_ = 0;
};

/// Work of a stream that is recorded instead of run, to be launched as a whole any number of times (a CUDA graph). Its
/// operands are the addresses at the time of recording.
class Graph {
 public:
  /// True if this device supports graphs.
  static bool available();

  Graph() = default;
  ~Graph();  // NOLINT(performance-trivially-destructible): not trivial on a GPU
  Graph(Graph&& other) noexcept;
  Graph& operator=(Graph&& other) noexcept;
  /// Records the work that work() submits to the stream, which must not make the host wait, nor allocate device memory.
  /// recorded() stays false if the driver has no memory for the graph.
  void record(Stream& stream, const std::function<void()>& work);
  void launch(Stream& stream);
  bool recorded() const { return native_ != nullptr; }

 private:
  void* native_ = nullptr;
};

/// Copies in stream order. A copy between a GPU and pinned memory is asynchronous: that memory must stay valid until
/// the stream has passed the copy. Other host memory may be reused when the call returns.
void copy_to_device(void* device, const void* host, int64_t bytes, Stream& stream);
void copy_to_host(void* host, const void* device, int64_t bytes, Stream& stream);
void copy_on_device(void* to, const void* from, int64_t bytes, Stream& stream);
void fill_zero(void* device, int64_t bytes, Stream& stream);

/// Bytes that can still be allocated on this device, and the device's total.
struct DeviceMemory {
  int64_t available;
  int64_t total;
};
DeviceMemory device_memory();

/// Device memory of a process beside its own allocations. On a GPU: the CUDA context. On the host: its current memory
/// (program, libraries, tables of the data), with file pages divided among the `processes` that share the device. Needs
/// no device.
int64_t device_context_bytes(int64_t processes);
/// Current device memory of this process, its context included. On the host: its resident pages, shared ones by their
/// share. On a GPU that it owns alone: the decrease of free memory since its start, which includes libraries and
/// kernels (and programs that started later). On a GPU shared by `processes`, where that would count everyone's: its
/// allocations through DeviceBuffer. The context counts as planned.
int64_t device_process_bytes(int64_t processes);
/// Memory that a plan must leave free in a process's share of the device: for kernels that are loaded on their first
/// call, recorded graphs and scratch of single kernels.
int64_t device_reserve_bytes();
/// Name of the device's location. Partitions of one GPU (MIG) share a location; machines of equal names have locations
/// of equal names.
std::string device_address();
/// Unique id of the memory that this process computes in: a GPU, or a partition of one.
std::string device_identity();
/// Text to append to an error of a compute library: which device is broken and what to do; empty if the device works.
std::string device_fault();

/// Sets the number of threads for kernels.
void use_threads(int threads);

/// Initialises and finalises what kernels need (Kokkos; the CUDA context of a GPU, chosen by the rank's number on its
/// node, see choose_device.hpp). Runtime creates the only one of the process.
class DeviceRuntime {
 public:
  DeviceRuntime(int node_rank, int threads, int ranks_of_node = 1);
  ~DeviceRuntime();
  DeviceRuntime(const DeviceRuntime&) = delete;
  DeviceRuntime& operator=(const DeviceRuntime&) = delete;
};

}  // namespace llmtrain
