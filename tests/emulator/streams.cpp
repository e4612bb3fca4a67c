#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "emulator/blocks.hpp"
#include "emulator/cuda_runtime.h"
#include "emulator/limits.hpp"

namespace {

struct Operation {
  std::string what;
  std::function<void()> work;
  std::function<bool()> ready;  ///< none: at once
};

}  // namespace

struct CUgraph_st {
  std::vector<Operation> operations;  ///< in the order of the calls, which satisfies their dependencies
  CUstream_st* origin = nullptr;
  bool everywhere = true;  ///< the restrictions of a recording apply to all threads
  std::thread::id thread;
};
struct CUgraphExec_st {
  std::shared_ptr<const std::vector<Operation>> operations;
  size_t bytes = 0;  ///< of device memory
};
struct CUstream_st {
  int device = 0;
  std::deque<Operation> queue;
  int64_t given = 0, done = 0;
  CUgraph_st* graph = nullptr;        ///< graph that records the stream
  int64_t recorded = 0, joined = -1;  ///< number of recorded operations, and of those that another stream waits for
};
struct CUevent_st {
  CUstream_st* stream = nullptr;
  CUgraph_st* graph = nullptr;
  int64_t after = 0;  ///< number of operations of the stream, or of its recording
};

namespace llmtrain::emulator {

namespace {

/// All streams; a lock serialises the calls of all threads.
struct Streams {
  std::recursive_mutex mutex;
  std::set<CUstream_st*> all;
  CUstream_st null_stream;
  Counts counts;
  std::mt19937_64 chance;
  enum { lazy, eager, by_chance } order = lazy;
  Streams() {
    all.insert(&null_stream);
    const char* given = std::getenv("LLMTRAIN_EMULATOR_ORDER");
    const std::string wanted = given != nullptr ? given : "lazy";
    if (wanted == "eager") order = eager;
    if (wanted != "eager" && wanted != "lazy") {
      order = by_chance;
      chance.seed(std::stoull(wanted));
    }
  }
};
using Lock = std::lock_guard<std::recursive_mutex>;
Streams& streams() {
  static auto* one = new Streams();  // outlives all destructors
  return *one;
}

CUstream_st* known(CUstream_st* stream) {
  Streams& s = streams();
  if (stream == nullptr) return &s.null_stream;
  if (!s.all.contains(stream)) fail("a stream is used that was destroyed, or is none");
  return stream;
}

void run(const Operation& operation) {
  const DeviceAccess named(operation.what);
  operation.work();
}

/// Called after a wait for it. The caller holds the lock.
void count_idle(const CUstream_st* stream) {
  if (stream->done == stream->given) ++streams().counts.idle_waits;
}

/// Runs operations as far as they are ready; returns whether `count` have run. The caller holds the lock.
bool try_drain_to(CUstream_st* stream, int64_t end) {
  if (stream->done >= end) return true;
  const DeviceAccess access("");
  while (stream->done < end) {
    if (stream->queue.front().ready && !stream->queue.front().ready()) return false;
    const Operation next = std::move(stream->queue.front());
    stream->queue.pop_front();
    run(next);
    ++stream->done;
  }
  return true;
}

/// Lets other threads, and other ranks on this processor, run.
void give_way() { std::this_thread::sleep_for(std::chrono::microseconds(50)); }

/// Without the lock: other threads may use the GPU while this one waits.
void drain_to(CUstream_st* stream, int64_t end) {
  for (;; give_way()) {
    const Lock lock(streams().mutex);
    if (!streams().all.contains(stream)) return;
    if (try_drain_to(stream, end)) return count_idle(stream);
  }
}

void go_on_by_chance() {
  Streams& s = streams();
  if (s.chance() % 4 != 0) return;
  auto chosen = s.all.begin();
  std::advance(chosen, s.chance() % s.all.size());
  CUstream_st* stream = *chosen;
  const auto waiting = static_cast<uint64_t>(stream->given - stream->done);
  if (waiting > 0) try_drain_to(stream, stream->done + 1 + static_cast<int64_t>(s.chance() % waiting));
}

}  // namespace

std::vector<unsigned> order_of(unsigned count) {
  Streams& s = streams();
  const Lock lock(s.mutex);
  std::vector<unsigned> order(count);
  std::iota(order.begin(), order.end(), 0U);
  if (s.order == Streams::lazy) std::reverse(order.begin(), order.end());
  if (s.order == Streams::by_chance) std::shuffle(order.begin(), order.end(), s.chance);
  return order;
}

uint64_t seed_of_turns() {
  Streams& s = streams();
  const Lock lock(s.mutex);
  if (s.order == Streams::eager) return 0;
  return s.order == Streams::by_chance ? s.chance() | 1 : static_cast<uint64_t>(s.counts.launches) + 1;
}

const Counts& counts() { return streams().counts; }
void count_synchronization() {
  const Lock lock(streams().mutex);
  ++streams().counts.synchronizations;
}
void count_allocation() { ++streams().counts.allocations; }
void count_launch() { ++streams().counts.launches; }
void count_attribute() { ++streams().counts.attributes; }
void count_pageable_copy() { ++streams().counts.pageable_copies; }
void count_transfer() { ++streams().counts.transfers; }

void refuse_while_recording(const char* call) {
  const Lock lock(streams().mutex);
  for (const CUstream_st* stream : streams().all) {
    if (stream->graph == nullptr) continue;
    if (!stream->graph->everywhere && stream->graph->thread != std::this_thread::get_id()) continue;
    fail(std::string(call) + " is not allowed while a stream is recorded into a graph");
  }
}

void enqueue(CUstream_st* given, std::string what, std::function<void()> work, std::function<bool()> ready) {
  Streams& s = streams();
  const Lock lock(s.mutex);
  CUstream_st* stream = known(given);
  if (given != nullptr && stream->device != current_device()) {
    fail(what + " is given to a stream of another GPU than this thread has chosen with cudaSetDevice");
  }
  if (stream->graph != nullptr) {
    stream->graph->operations.push_back({std::move(what), std::move(work), {}});
    ++stream->recorded;
    return;
  }
  stream->queue.push_back({std::move(what), std::move(work), std::move(ready)});
  ++stream->given;
  if (s.order == Streams::eager) try_drain_to(stream, stream->given);
  if (s.order == Streams::by_chance) go_on_by_chance();
}

void go_on(CUstream_st* given, const std::function<bool()>& enough) {
  const Lock lock(streams().mutex);
  CUstream_st* stream = known(given);
  while (!enough() && stream->done < stream->given && try_drain_to(stream, stream->done + 1)) {
  }
}

void drain(CUstream_st* given) {
  CUstream_st* stream = nullptr;
  int64_t end = 0;
  {
    const Lock lock(streams().mutex);
    stream = known(given);
    end = stream->given;
  }
  drain_to(stream, end);
}

void drain_all() {
  std::vector<std::pair<CUstream_st*, int64_t>> ends;
  {
    const Lock lock(streams().mutex);
    for (CUstream_st* stream : streams().all) ends.emplace_back(stream, stream->given);
  }
  for (const auto& [stream, end] : ends) drain_to(stream, end);
}

}  // namespace llmtrain::emulator

using namespace llmtrain::emulator;

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  const Lock lock(streams().mutex);
  if (flags != cudaStreamNonBlocking) fail("streams that wait for the null stream are not emulated");
  refuse_another_context("cudaStreamCreateWithFlags");
  *stream = new CUstream_st();
  (*stream)->device = current_device();
  streams().all.insert(*stream);
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int /*priority*/) {
  return cudaStreamCreateWithFlags(stream, flags);
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  if (stream == nullptr) fail("cudaStreamDestroy of the null stream");
  drain(stream);  // a GPU would finish it eventually
  const Lock lock(streams().mutex);
  streams().all.erase(stream);
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  refuse_while_recording("cudaStreamSynchronize");
  count_synchronization();
  drain(stream);
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  refuse_while_recording("cudaDeviceSynchronize");
  count_synchronization();
  drain_all();
  return cudaSuccess;
}
/// Returns not ready the first time; ready work is then done, so that a poll sees progress.
cudaError_t cudaStreamQuery(cudaStream_t given) {
  refuse_while_recording("cudaStreamQuery");
  if (gpu_is_broken()) return result(cudaErrorECCUncorrectable);
  {
    const Lock lock(streams().mutex);
    CUstream_st* stream = known(given);
    if (stream->done == stream->given) return cudaSuccess;
    count_synchronization();
    if (try_drain_to(stream, stream->given)) {
      count_idle(stream);
      return result(cudaErrorNotReady);
    }
  }
  give_way();
  return result(cudaErrorNotReady);
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  enqueue(stream, "a function of the host in a stream", [=] { function(data); });
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned /*flags*/) {
  refuse_another_context("cudaEventCreateWithFlags");
  *event = new CUevent_st();
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t given) {
  const Lock lock(streams().mutex);
  CUstream_st* stream = known(given);
  *event = {stream, stream->graph, stream->graph != nullptr ? stream->recorded : stream->given};
  return cudaSuccess;
}

namespace {

void wait_in_recording(CUstream_st* stream, const CUevent_st& event) {
  if (event.graph == nullptr) fail("a recorded stream waits for an event that is not of the recording");
  if (stream->graph == nullptr) {
    stream->graph = event.graph;
    stream->recorded = 0;
    stream->joined = -1;
  }
  if (stream->graph != event.graph) fail("two recordings wait for each other");
  if (stream != event.stream) event.stream->joined = std::max(event.stream->joined, event.after);
}

}  // namespace

cudaError_t cudaStreamWaitEvent(cudaStream_t given, cudaEvent_t event, unsigned /*flags*/) {
  const Lock lock(streams().mutex);
  CUstream_st* stream = known(given);
  if (event->stream == nullptr) fail("a stream waits for an event that was never recorded: it waits for nothing");
  if (stream->graph != nullptr || event->graph != nullptr) {
    wait_in_recording(stream, *event);
    return cudaSuccess;
  }
  CUstream_st* other = event->stream;
  if (other == stream || !streams().all.contains(other)) return cudaSuccess;
  const auto reached = [other, after = event->after] {
    return !streams().all.contains(other) || try_drain_to(other, after);  // else it was finished when it was destroyed
  };
  enqueue(
      given, "waiting for an event", [] {}, reached);
  return cudaSuccess;
}

namespace {

bool is_reached(const CUevent_st& event) {
  return event.stream == nullptr || !streams().all.contains(event.stream) || event.stream->done >= event.after;
}

}  // namespace

cudaError_t cudaEventQuery(cudaEvent_t event) {
  refuse_while_recording("cudaEventQuery");
  if (gpu_is_broken()) return result(cudaErrorECCUncorrectable);
  {
    const Lock lock(streams().mutex);
    if (is_reached(*event)) return cudaSuccess;
    if (try_drain_to(event->stream, event->after)) {  // as in cudaStreamQuery
      count_idle(event->stream);
      return result(cudaErrorNotReady);
    }
  }
  give_way();
  return result(cudaErrorNotReady);
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  refuse_while_recording("cudaEventSynchronize");
  count_synchronization();
  if (event->stream != nullptr) drain_to(event->stream, event->after);
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  const Lock lock(streams().mutex);
  if (stream == nullptr || known(stream)->graph != nullptr) return cudaErrorInvalidValue;
  stream->graph = new CUgraph_st();
  stream->graph->origin = stream;
  stream->graph->everywhere = mode == cudaStreamCaptureModeGlobal;
  stream->graph->thread = std::this_thread::get_id();
  stream->recorded = 0;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const Lock lock(streams().mutex);
  *graph = nullptr;
  CUgraph_st* recording = known(stream)->graph;
  if (recording == nullptr || recording->origin != stream) return cudaErrorInvalidValue;
  bool all_joined = true;
  for (CUstream_st* each : streams().all) {
    if (each->graph != recording) continue;
    if (each != stream && each->joined < each->recorded) all_joined = false;
    each->graph = nullptr;
  }
  if (!all_joined) {
    delete recording;
    return cudaErrorStreamCaptureUnjoined;
  }
  *graph = recording;
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  const Lock lock(streams().mutex);
  *status = known(stream)->graph != nullptr ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long /*flags*/) {
  static std::atomic<int64_t> number = 0;
  *exec = nullptr;
  const bool refused = refuses({++number});
  const size_t bytes = graph->operations.size() * static_cast<size_t>(setting("LLMTRAIN_EMULATOR_GRAPH_NODE", 4096));
  if (refused || !take_device_bytes(bytes)) return result(cudaErrorMemoryAllocation);
  *exec = new CUgraphExec_st{std::make_shared<const std::vector<Operation>>(graph->operations), bytes};
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  enqueue(stream, "a graph", [operations = exec->operations] {
    for (const Operation& operation : *operations) run(operation);
  });
  return cudaSuccess;
}
cudaError_t cudaGraphUpload(cudaGraphExec_t /*exec*/, cudaStream_t /*stream*/) { return cudaSuccess; }
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  give_back_device_bytes(exec->bytes);
  delete exec;
  return cudaSuccess;
}
