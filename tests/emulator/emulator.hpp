#pragma once
// A pretended GPU for tests, as strict as one may be: the libraries of CUDA that the program calls, on the host.
// Device memory cannot be touched but by kernels and copies. Streams do nothing before somebody waits for them, so what
// nobody ordered happens in the wrong order. What a GPU would leave undefined ends the program with a message.
// The environment may change it:
//   LLMTRAIN_EMULATOR_DEVICES  how many GPUs there are (1)
//   LLMTRAIN_EMULATOR_MIG      1: they are parts of one GPU, each with memory of its own
//   LLMTRAIN_EMULATOR_MEMORY   bytes of each (4 GiB)
//   LLMTRAIN_EMULATOR_CAPABILITY  of all, times ten (86)
//   LLMTRAIN_EMULATOR_FAULT    of one rank: see Fault
//   LLMTRAIN_EMULATOR_ORDER    lazy (what nobody waits for is done last; blocks, and threads of a block, begin with the
//                              last one), eager (at once; with the first one) or a number (by chance)

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

struct CUstream_st;

namespace llmtrain::emulator {

/// Since the program began.
struct Counts {
  int64_t launches = 0;          ///< of kernels, those of graphs as well
  int64_t allocations = 0;       ///< of device and of pinned memory
  int64_t synchronizations = 0;  ///< calls that wait for a stream, an event or the device
  int64_t idle_waits = 0;        ///< waits, by asking or not, after which the stream has nothing left to do
  int64_t pageable_copies = 0;   ///< from or to pageable memory: the host waits for them, too
  int64_t transfers = 0;         ///< of NCCL, that have arrived
  int64_t attributes = 0;        ///< of kernels that were set
};
const Counts& counts();

// For the stand-ins.

[[noreturn]] void fail(const std::string& what);

/// Ends the program where a stream or, with null, any stream is recorded: the call is not allowed then.
void refuse_while_recording(const char* call);
/// Behind all that the stream holds. `what` is for messages. With `ready`: once that says so, which is asked again and
/// again while somebody waits or looks.
void enqueue(CUstream_st* stream, std::string what, std::function<void()> work, std::function<bool()> ready = {});
/// What the stream holds is done, as far as it is ready, until it is enough.
void go_on(CUstream_st* stream, const std::function<bool()>& enough);
/// A launch's blocks, or a block's threads, in the order in which they begin.
std::vector<unsigned> order_of(unsigned count);
/// Whatever the stream holds is done.
void drain(CUstream_st* stream);
void drain_all();
void count_synchronization();
void count_allocation();
void count_launch();
void count_attribute();
void count_pageable_copy();
void count_transfer();

/// Device memory may be used while one lives.
class DeviceAccess {
 public:
  explicit DeviceAccess(const std::string& what);
  ~DeviceAccess();
  DeviceAccess(const DeviceAccess&) = delete;
  DeviceAccess& operator=(const DeviceAccess&) = delete;
};

bool gpu_is_broken();

/// Null where there is not so much.
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
/// Ends the program when [data, data + bytes) is not within one allocation.
void expect_device(const void* data, size_t bytes, const std::string& what);
/// Ends the program when an argument of a kernel holds an address of pageable host memory.
void expect_no_host_pointers(const void* argument, size_t bytes, const std::string& what);

/// What the calling thread has chosen; 0 in new threads.
int current_device();
/// Ends the test where the thread's GPU is not the one that the process has started.
void refuse_another_context(const char* call);

/// LLMTRAIN_EMULATOR_FAULT="KIND RANK NUMBER [KERNEL]": a mishap of one rank. Kinds:
///   hang   its transfer of NCCL of that number never arrives
///   lost   so, too, and NCCL says that a peer is lost
///   kernel its kernel of that number never ends
///   ecc    its kernel of that number finds broken memory, of which the GPU tells from then on
///   start  the GPU cannot be started
struct Fault {
  std::string kind;  ///< empty: none, or another rank's
  int64_t number = 0;
  std::string kernel;  ///< part of the names of the kernels that count; empty: all
};
const Fault& fault();

int64_t setting(const char* name, int64_t otherwise);

}  // namespace llmtrain::emulator
