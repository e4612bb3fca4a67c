#pragma once
// A strict emulated GPU for tests: the CUDA libraries that the program calls, on the host. Device memory can be
// accessed only by kernels and copies. Streams do nothing before the host waits for them, so that unordered work runs
// in the wrong order. Undefined behaviour on a GPU ends the program with a message.
// Environment variables:
//   LLMTRAIN_EMULATOR_DEVICES  number of GPUs (1)
//   LLMTRAIN_EMULATOR_MIG      1: they are partitions of one GPU, each with memory of its own
//   LLMTRAIN_EMULATOR_MEMORY   bytes of each (4 GiB)
//   LLMTRAIN_EMULATOR_CAPABILITY  of all, times ten (86)
//   LLMTRAIN_EMULATOR_FAULT    of one rank: see Fault
//   LLMTRAIN_EMULATOR_ORDER    lazy (work runs only when waited for; blocks, and threads of a block, start with the
//                              last one), eager (at once; with the first one) or a number (random); limits.hpp has more

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

struct CUstream_st;

namespace llmtrain::emulator {

/// Counts since the start of the program.
struct Counts {
  int64_t launches = 0;          ///< of kernels, those of graphs as well
  int64_t allocations = 0;       ///< of device and of pinned memory
  int64_t synchronizations = 0;  ///< calls that wait for a stream, an event or the device
  int64_t idle_waits = 0;        ///< waits or polls after which the stream has no work left
  int64_t pageable_copies = 0;   ///< from or to pageable memory, for which the host waits
  int64_t transfers = 0;         ///< completed transfers of NCCL
  int64_t attributes = 0;        ///< settings of kernel attributes
};
const Counts& counts();

// Interface for the emulated libraries.

[[noreturn]] void fail(const std::string& what);

/// Ends the program if the stream or, with null, any stream is being recorded, where the call is not allowed.
void refuse_while_recording(const char* call);
/// Enqueues work after all work of the stream. `what` is for messages. With `ready`: it runs once that returns true,
/// which is polled while the host waits.
void enqueue(CUstream_st* stream, std::string what, std::function<void()> work, std::function<bool()> ready = {});
/// Runs the stream's work, as far as it is ready, until `enough`.
void go_on(CUstream_st* stream, const std::function<bool()>& enough);
/// Order in which a launch's blocks, or a block's threads, start.
std::vector<unsigned> order_of(unsigned count);
/// Runs all work of the stream.
void drain(CUstream_st* stream);
void drain_all();
void count_synchronization();
void count_allocation();
void count_launch();
void count_attribute();
void count_pageable_copy();
void count_transfer();

/// Makes device memory accessible during its lifetime.
class DeviceAccess {
 public:
  explicit DeviceAccess(const std::string& what);
  ~DeviceAccess();
  DeviceAccess(const DeviceAccess&) = delete;
  DeviceAccess& operator=(const DeviceAccess&) = delete;
};

bool gpu_is_broken();

/// Null if there is not enough memory.
void* allocate_device(size_t bytes);
void free_device(void* data);
void set_device_bytes(void* data, int value, size_t bytes);
size_t device_bytes_used();
size_t device_bytes_total();
void* allocate_pinned(size_t bytes);
void free_pinned(void* data);
void register_pinned(const void* data, size_t bytes);
void unregister_pinned(const void* data);
bool is_device(const void* data);
bool is_pinned(const void* data);
/// Ends the program if [data, data + bytes) is not within one allocation.
void expect_device(const void* data, size_t bytes, const std::string& what);
/// Ends the program if an argument of a kernel holds an address of pageable host memory.
void expect_no_host_pointers(const void* argument, size_t bytes, const std::string& what);

/// Device of the calling thread; 0 in new threads.
int current_device();
/// Ends the test if the thread's GPU differs from the one that the process has initialised.
void refuse_another_context(const char* call);

/// LLMTRAIN_EMULATOR_FAULT="KIND RANK NUMBER [KERNEL]": a fault of one rank. Kinds:
///   hang   its NCCL transfer of that number never arrives
///   lost   the same, and NCCL reports a lost peer
///   kernel its kernel of that number never ends
///   ecc    its kernel of that number finds broken memory, which the GPU reports from then on
///   start  the GPU cannot be initialised
struct Fault {
  std::string kind;  ///< empty: none, or a different rank's
  int64_t number = 0;
  std::string kernel;  ///< substring of the names of counted kernels; empty: all
};
const Fault& fault();

int64_t setting(const char* name, int64_t otherwise);

}  // namespace llmtrain::emulator
