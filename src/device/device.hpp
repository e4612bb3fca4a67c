#pragma once
// The device that computes: memory, ordering and copies. device_host.cpp and device_cuda.cpp implement it; nothing else
// knows which one is linked.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "core/tensor.hpp"

namespace llmtrain {

/// Name of the device this program was built for: "host" or "cuda".
const char* device_kind();
/// e.g. "AMD EPYC 9B14, 2 threads, AVX-512 bf16" or "NVIDIA H200".
std::string device_description();
/// The libraries that compute, with versions: "Kokkos 5.2.2, oneDNN 3.12.1". Needs no device.
std::string device_libraries();
/// Whether pointers to device memory are good on the host too.
bool device_memory_is_host();
/// Returns whether the device multiplies bf16 matrices faster than fp32 ones (bf16_products_are_fast() asks the
/// libraries, too). Where the build's devices are missing: whether they do that it is made for, which is what a plan
/// can go by.
bool device_fast_bf16();

/// An ordered queue of work. On the host work is done inline, so that every call has completed when it returns.
class Stream {
 public:
  Stream();
  ~Stream();  // NOLINT(performance-trivially-destructible): not trivial on a GPU
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  void synchronize();                       ///< the host waits for all that is in the stream; see WaitObserver
  void* native() const { return native_; }  ///< cudaStream_t, null on the host

 private:
  void* native_ = nullptr;
};

/// A point in a stream that another stream waits for.
class Event {
 public:
  Event();
  ~Event();  // NOLINT(performance-trivially-destructible): not trivial on a GPU
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record(Stream& stream);
  void wait(Stream& stream);
  bool reached() const;  ///< also where nothing was recorded
  void synchronize();    ///< the host waits; see WaitObserver

 private:
  void* native_ = nullptr;
};

/// Work of the device may never end: a transfer whose peer is gone, a kernel that hangs. While the host waits for the
/// device it therefore asks again and again, and an observer hears of it every few milliseconds.
class WaitObserver {
 public:
  virtual ~WaitObserver() = default;
  virtual void waiting() = 0;          ///< may throw, which ends the wait
  virtual void waited() noexcept = 0;  ///< the wait is over, if waiting() was called in it
};
/// Of the calling thread; it outlives its registration. Null: none.
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

/// Owning host memory that the device reads and writes by itself while the host goes on, zero-filled. Plain memory on
/// the host.
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

/// Work of a stream that is recorded instead of done, to be given to streams as a whole and as often as wanted (a CUDA
/// graph). What it reads and writes is what lay at the same addresses when it was recorded.
class Graph {
 public:
  /// Whether this device has such a thing.
  static bool available();

  Graph() = default;
  ~Graph();  // NOLINT(performance-trivially-destructible): not trivial on a GPU
  Graph(Graph&& other) noexcept;
  Graph& operator=(Graph&& other) noexcept;
  /// Once: what work() gives to the stream. It must not make the host wait, nor allocate device memory.
  void record(Stream& stream, const std::function<void()>& work);
  void launch(Stream& stream);
  bool recorded() const { return native_ != nullptr; }

 private:
  void* native_ = nullptr;
};

/// Copies in the order of the stream. Between a GPU and pinned memory the host does not wait: that memory must stay as
/// it is until the stream has come past the copy. Other host memory may be changed, or read, when the call returns.
void copy_to_device(void* device, const void* host, int64_t bytes, Stream& stream);
void copy_to_host(void* host, const void* device, int64_t bytes, Stream& stream);
void copy_on_device(void* to, const void* from, int64_t bytes, Stream& stream);
void fill_zero(void* device, int64_t bytes, Stream& stream);

/// Bytes of memory a new allocation on this device could get now, and the device's total.
struct DeviceMemory {
  int64_t available;
  int64_t total;
};
DeviceMemory device_memory();

/// What a process takes of the device beside what it allocates there: by starting (a CUDA context); on the host what it
/// has now (program, libraries, tables of the data), pages of files being divided among the `processes` that share the
/// device. Needs no device.
int64_t device_context_bytes(int64_t processes);
/// What this process has of the device by now, its context included. On the host its resident pages, those that are
/// shared by their share. On a GPU that it has for itself, what has gone from there since it started, which counts what
/// libraries and kernels take (and programs of others that come later); where `processes` share the GPU, that would be
/// everybody's, and it is what the process has allocated through DeviceBuffer. The context counts as planned.
int64_t device_process_bytes(int64_t processes);
/// What a plan must leave free of a process's share of the device: for kernels that are loaded when they are first
/// called, recorded graphs and scratch of single kernels.
int64_t device_reserve_bytes();
/// Where the device is that this process computes on. Parts of one GPU that processes share (MIG) are in one place, and
/// machines of equal names have places of equal names.
std::string device_address();
/// Of the memory that this process computes in, and of no other in the world: a GPU, or a part of one.
std::string device_identity();
/// To be added to the error of a library that computes there: that it is the device that is broken, which, and what to
/// do; mostly nothing.
std::string device_fault();

/// Threads that kernels take from here on.
void use_threads(int threads);

/// Starts and ends what kernels need (Kokkos; the CUDA context of a GPU, chosen by the rank's number on its node, see
/// choose_device.hpp). One per process, made by Runtime.
class DeviceRuntime {
 public:
  DeviceRuntime(int node_rank, int threads, int ranks_of_node = 1);
  ~DeviceRuntime();
  DeviceRuntime(const DeviceRuntime&) = delete;
  DeviceRuntime& operator=(const DeviceRuntime&) = delete;
};

}  // namespace llmtrain
