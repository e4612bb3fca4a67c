// The emulated GPU detects errors that a real one would punish.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>

#include "device/device.hpp"
#include "emulator/cuda_runtime.h"
#include "emulator/emulator.hpp"
#include "emulator/limits.hpp"
#include "harness/harness.hpp"
#include "kernels/cuda/shared_memory.cuh"

namespace llmtrain {
namespace {

struct Add {
  float* to;
  const float* from;
  float amount;
};
void add(Add a) {
  if (threadIdx.x == 0) *a.to = *a.from + a.amount;
}
cudaError_t launch_add(cudaStream_t stream, const Add& arguments, unsigned threads = 32, size_t shared_bytes = 0) {
  cudaLaunchConfig_t config{};
  config.blockDim = dim3{threads, 1, 1};
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  return cudaLaunchKernelEx(&config, add, arguments);
}

template <class Kernel, class Arguments>
cudaError_t launch(Kernel* kernel, unsigned blocks, unsigned threads, const Arguments& arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3{blocks, 1, 1};
  config.blockDim = dim3{threads, 1, 1};
  return cudaLaunchKernelEx(&config, kernel, arguments);
}

struct Numbers {
  Numbers() { cudaMalloc(&data, 4 * sizeof(float)); }
  ~Numbers() { cudaFree(data); }
  Numbers(const Numbers&) = delete;
  Numbers& operator=(const Numbers&) = delete;
  void set(int i, float value) {
    cudaMemcpy(data + i, &value, sizeof value, cudaMemcpyHostToDevice);
    cudaDeviceSynchronize();
  }
  void clear() const { cudaMemset(data, 0, 4 * sizeof(float)); }
  float get(int i) const {
    float value = 0;
    cudaDeviceSynchronize();
    cudaMemcpy(&value, data + i, sizeof value, cudaMemcpyDeviceToHost);
    return value;
  }
  float* data = nullptr;
};

cudaStream_t raw(const Stream& stream) { return static_cast<cudaStream_t>(stream.native()); }

bool lazy() {
  const char* order = std::getenv("LLMTRAIN_EMULATOR_ORDER");
  return order == nullptr || std::string(order) == "lazy";
}

// Allocations outside DeviceBuffer are counted if they must be this process's.
TEST(ProcessBytes, CountWhatLibrariesTakeWhereNobodyElseIs) {
  constexpr int64_t bytes = int64_t{3} << 20;
  const int64_t alone = device_process_bytes(1), shared = device_process_bytes(2);
  void* of_library = nullptr;
  ASSERT_EQ(cudaMalloc(&of_library, bytes), cudaSuccess);
  EXPECT_EQ(device_process_bytes(1) - alone, bytes);
  EXPECT_EQ(device_process_bytes(2) - shared, 0) << "could be another process's";
  cudaFree(of_library);
  EXPECT_EQ(device_process_bytes(1), alone);
  const DeviceBuffer own(bytes);
  EXPECT_EQ(device_process_bytes(2) - shared, bytes);
}

TEST(Emulator, EndsAProgramWhoseHostTouchesDeviceMemory) {
  const Numbers numbers;
  EXPECT_DEATH(*static_cast<volatile float*>(numbers.data) = 1, "the host touches device memory");
}

TEST(Emulator, EndsAProgramWhoseKernelLeavesItsMemory) {
  const Numbers numbers;
  const auto beyond = [&] {
    launch_add(nullptr, {numbers.data + 64, numbers.data, 1});
    cudaDeviceSynchronize();
  };
  EXPECT_DEATH(beyond(), "beyond its end");
  EXPECT_DEATH(cudaMemset(numbers.data, 0, 17), "not within one allocation");
}

TEST(Emulator, EndsAProgramThatUsesFreedMemory) {
  float* freed = nullptr;
  cudaMalloc(&freed, 4);
  cudaFree(freed);
  EXPECT_DEATH(cudaMemset(freed, 0, 4), "not within one allocation");
  EXPECT_DEATH(cudaFree(freed), "second time");
}

TEST(Emulator, EndsAProgramThatGivesAKernelMemoryOfTheHost) {
  const Numbers numbers;
  float local = 0;
  EXPECT_DEATH(launch_add(nullptr, {numbers.data, &local, 1}), "address of host memory, in byte 8");
  float* pinned = nullptr;
  ASSERT_EQ(cudaMallocHost(reinterpret_cast<void**>(&pinned), 4), cudaSuccess);
  *pinned = 5;
  EXPECT_EQ(launch_add(nullptr, {numbers.data, pinned, 1}), cudaSuccess);
  EXPECT_EQ(numbers.get(0), 6);
  cudaFreeHost(pinned);
}

TEST(Emulator, NewMemoryIsNotZero) {
  const Numbers numbers;
  EXPECT_TRUE(std::isnan(numbers.get(0)));
}

// The second stream reads data of the first: after it with an event, before it without one.
TEST(Emulator, StreamsAreOrderedByEventsOnly) {
  for (const bool ordered : {false, true}) {
    Numbers numbers;
    numbers.set(0, 1);
    Stream first, second;
    Event written;
    launch_add(raw(first), {numbers.data, numbers.data, 10});
    if (ordered) {
      written.record(first);
      written.wait(second);
    }
    launch_add(raw(second), {numbers.data + 1, numbers.data, 100});
    second.synchronize();
    const float found = numbers.get(1);
    if (ordered || lazy()) {
      EXPECT_EQ(found, ordered ? 111 : 101);
    }
  }
}

// A later query for the last error does not see it.
TEST(Emulator, WaitingLeavesNoErrorBehind) {
  if (!lazy()) GTEST_SKIP() << "of the lazy order";
  const Numbers numbers;
  Stream stream;
  Event event;
  const auto busy = [&] { launch_add(raw(stream), {numbers.data, numbers.data, 1}); };
  busy();
  EXPECT_EQ(cudaStreamQuery(raw(stream)), cudaErrorNotReady);
  EXPECT_EQ(cudaGetLastError(), cudaErrorNotReady);
  busy();
  stream.synchronize();
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  busy();
  event.record(stream);
  EXPECT_FALSE(event.reached());
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
}

TEST(Emulator, PinnedMemoryIsCopiedLate) {
  if (!lazy()) GTEST_SKIP() << "of the lazy order";
  Numbers numbers;
  Stream stream;
  float* pinned = nullptr;
  ASSERT_EQ(cudaMallocHost(reinterpret_cast<void**>(&pinned), 4), cudaSuccess);
  float pageable = 1;
  *pinned = 1;
  copy_to_device(numbers.data, pinned, 4, stream);
  copy_to_device(numbers.data + 1, &pageable, 4, stream);
  *pinned = 2;  // too early
  pageable = 2;
  stream.synchronize();
  EXPECT_EQ(numbers.get(0), 2);
  EXPECT_EQ(numbers.get(1), 1);
  numbers.set(0, 7);
  copy_to_host(pinned, numbers.data, 4, stream);
  EXPECT_EQ(*pinned, 2);
  copy_to_host(&pageable, numbers.data, 4, stream);
  EXPECT_EQ(pageable, 7) << "pageable memory: the call waits";
  EXPECT_EQ(*pinned, 7);
  cudaFreeHost(pinned);
}

// The same in a thread that never called cudaSetDevice, of a rank whose GPU is not the first.
TEST(Emulator, EndsAProgramThatForgetsWhichGpuItUses) {
  int devices = 0;
  ASSERT_EQ(cudaGetDeviceCount(&devices), cudaSuccess);
  if (devices < 2) GTEST_SKIP() << "LLMTRAIN_EMULATOR_DEVICES=2";
  const Numbers numbers;
  const Stream stream;
  cudaSetDevice(1);
  EXPECT_DEATH(launch_add(raw(stream), {numbers.data, numbers.data, 1}), "a stream of another GPU");
  cudaSetDevice(0);
}

TEST(Emulator, RefusesLaunchesThatAGpuRefuses) {
  const Numbers numbers;
  const Add good{numbers.data, numbers.data, 1};
  EXPECT_EQ(launch_add(nullptr, good, 2048), cudaErrorInvalidValue);
  EXPECT_EQ(launch_add(nullptr, good, 32, 49 << 10), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFuncSetAttribute(add, cudaFuncAttributeMaxDynamicSharedMemorySize, 64 << 10), cudaSuccess);
  EXPECT_EQ(launch_add(nullptr, good, 32, 49 << 10), cudaSuccess);
  EXPECT_EQ(cudaFuncSetAttribute(add, cudaFuncAttributeMaxDynamicSharedMemorySize, 256 << 10), cudaErrorInvalidValue);
  cudaGetLastError();
}

TEST(Emulator, Counts) {
  const emulator::Counts before = emulator::counts();
  Numbers numbers;
  Stream stream;
  launch_add(raw(stream), {numbers.data, numbers.data, 1});
  stream.synchronize();
  float pageable = 0;
  copy_to_host(&pageable, numbers.data, 4, stream);
  const emulator::Counts& after = emulator::counts();
  EXPECT_EQ(after.allocations - before.allocations, 1);
  EXPECT_EQ(after.launches - before.launches, 1);
  const int64_t waits = after.synchronizations - before.synchronizations;
  if (lazy()) {
    EXPECT_EQ(waits, 1);
  } else {
    EXPECT_LE(waits, 1) << "nobody waits for what is done";
  }
  EXPECT_EQ(after.pageable_copies - before.pageable_copies, 1);
}

TEST(Emulator, RecordsGraphs) {
  Numbers numbers;
  numbers.set(0, 0);
  Stream stream, side;
  Event forked, joined;
  ASSERT_EQ(cudaStreamBeginCapture(raw(stream), cudaStreamCaptureModeGlobal), cudaSuccess);
  launch_add(raw(stream), {numbers.data, numbers.data, 1});
  forked.record(stream);
  forked.wait(side);
  launch_add(raw(side), {numbers.data + 1, numbers.data, 10});
  joined.record(side);
  joined.wait(stream);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(raw(stream), &graph), cudaSuccess);
  cudaGraphExec_t exec = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
  EXPECT_EQ(numbers.get(0), 0) << "recorded, not run";
  for (int i = 0; i < 3; ++i) cudaGraphLaunch(exec, raw(stream));
  stream.synchronize();
  EXPECT_EQ(numbers.get(0), 3);
  EXPECT_EQ(numbers.get(1), 13);
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
}

/// A graph of one kernel; null if it is refused.
cudaGraphExec_t graph_of_one_kernel() {
  const Numbers numbers;
  Stream stream;
  cudaGraph_t graph = nullptr;
  cudaStreamBeginCapture(raw(stream), cudaStreamCaptureModeGlobal);
  launch_add(raw(stream), {numbers.data, numbers.data, 1});
  cudaStreamEndCapture(raw(stream), &graph);
  cudaGraphExec_t exec = nullptr;
  const cudaError_t code = cudaGraphInstantiate(&exec, graph, 0);
  EXPECT_EQ(code, exec != nullptr ? cudaSuccess : cudaErrorMemoryAllocation);
  cudaGraphDestroy(graph);
  cudaGetLastError();
  return exec;
}

TEST(Emulator, GraphsTakeMemory) {
  size_t before = 0, taken = 0, after = 0, total = 0;
  cudaMemGetInfo(&before, &total);
  {
    const emulator::ScopedSetting never("LLMTRAIN_EMULATOR_REFUSALS", -1),
        large("LLMTRAIN_EMULATOR_GRAPH_NODE", 1 << 20);
    cudaGraphExec_t graph = graph_of_one_kernel();
    ASSERT_NE(graph, nullptr);
    cudaMemGetInfo(&taken, &total);
    EXPECT_EQ(before - taken, size_t{1} << 20);
    cudaGraphExecDestroy(graph);
  }
  cudaMemGetInfo(&after, &total);
  EXPECT_EQ(after, before);
  const emulator::ScopedSetting too_large("LLMTRAIN_EMULATOR_GRAPH_NODE", static_cast<int64_t>(total));
  EXPECT_EQ(graph_of_one_kernel(), nullptr);
}

TEST(Emulator, RefusesByChanceAsItsSeedSays) {
  const auto refused = [](int64_t seed) {
    const emulator::ScopedSetting refusals("LLMTRAIN_EMULATOR_REFUSALS", seed);
    std::string found;
    for (int64_t request = 0; request < 64; ++request) found += emulator::refuses({5, request}) ? 'x' : '.';
    return found;
  };
  const auto count = [](const std::string& all) { return std::count(all.begin(), all.end(), 'x'); };
  EXPECT_EQ(refused(1), refused(1));
  EXPECT_NE(refused(1), refused(2));
  EXPECT_NEAR(static_cast<double>(count(refused(1))), 32, 16);
  EXPECT_EQ(count(refused(-1)), 0) << "control";
  const emulator::ScopedSetting refusals("LLMTRAIN_EMULATOR_REFUSALS", 1);
  int graphs = 0;
  for (int i = 0; i < 32; ++i) {
    cudaGraphExec_t graph = graph_of_one_kernel();
    if (graph == nullptr) continue;
    ++graphs;
    cudaGraphExecDestroy(graph);
  }
  EXPECT_NEAR(graphs, 16, 12);
}

TEST(Emulator, RecordingsForbidWhatAGpuForbids) {
  Numbers numbers;
  Stream stream, side;
  Event forked;
  float pageable = 0;
  ASSERT_EQ(cudaStreamBeginCapture(raw(stream), cudaStreamCaptureModeGlobal), cudaSuccess);
  EXPECT_DEATH(stream.synchronize(), "not allowed while a stream is recorded");
  EXPECT_DEATH(cudaMemcpyAsync(&pageable, numbers.data, 4, cudaMemcpyDefault, raw(stream)),
               "pageable memory is not allowed");
  EXPECT_DEATH(DeviceBuffer(64), "not allowed while a stream is recorded");
  forked.record(stream);
  forked.wait(side);
  launch_add(raw(side), {numbers.data + 1, numbers.data, 10});
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(raw(stream), &graph), cudaErrorStreamCaptureUnjoined);
}

struct Shared {
  float* to;
  bool right;
};
/// The last block to start wins; with `right`, each has its own element.
void number_blocks(Shared a) {
  if (threadIdx.x == 0) a.to[a.right ? blockIdx.x : 0] = static_cast<float>(blockIdx.x);
}
/// Data of the first warp, read by the second: after a barrier, or too early.
void pass_on(Shared a) {
  LLMTRAIN_SHARED(float, passed);
  if (threadIdx.x == 0) passed = 0;
  __syncthreads();
  if (threadIdx.x == 0) passed = 7;  // in the lazy order the last thread to run
  if (a.right) __syncthreads();
  if (threadIdx.x == 32) *a.to = passed;
}
/// What a block before left in shared memory is not there, with `right` because each block begins with zero.
void keep(Shared a) {
  LLMTRAIN_SHARED(float[2], kept);
  if (threadIdx.x > 0) return;
  if (a.right) kept[1] = 0;
  a.to[blockIdx.x] = kept[1];
  kept[1] = 7;
}
/// Counts the blocks whose number goes through memory and comes back as another; with `right`, each has its own.
void pass_through(Shared a) {
  float* place = a.to + (a.right ? blockIdx.x : 0);
  if (threadIdx.x == 0) *place = static_cast<float>(blockIdx.x);
  __syncthreads();
  if (threadIdx.x == 32 && *place != static_cast<float>(blockIdx.x)) a.to[3] += 1;
}
void bar_some(Shared a) {
  if (!a.right && threadIdx.x >= 32) return;
  __syncthreads();
  if (threadIdx.x == 0) *a.to = 1;
}
void bar_most(Shared a) {
  if (a.right || threadIdx.x > 0) __syncthreads();
  if (threadIdx.x == 0) *a.to = 1;
}
void bar_apart(Shared a) {
  if (a.right || threadIdx.x < 32) __syncthreads();
  if (!a.right && threadIdx.x >= 32) __syncthreads();
  if (threadIdx.x == 0) *a.to = 1;
}

TEST(Emulator, BlocksBeginInAnotherOrderThanTheyAreNumbered) {
  if (!lazy()) GTEST_SKIP() << "of the lazy order";
  const Numbers numbers;
  launch(number_blocks, 4, 32, Shared{numbers.data, false});
  EXPECT_EQ(numbers.get(0), 0) << "the first block is the last";
  launch(number_blocks, 4, 32, Shared{numbers.data, true});
  for (int i = 0; i < 4; ++i) EXPECT_EQ(numbers.get(i), static_cast<float>(i)) << "control";
}

TEST(Emulator, StaticSharedMemoryIsArbitraryInEachBlock) {
  const Numbers numbers;
  for (int launches = 0; launches < 2; ++launches) {
    launch(keep, 4, 64, Shared{numbers.data, false});
    for (int i = 0; i < 4; ++i) EXPECT_GT(numbers.get(i), 1e6) << "neither zero nor what the last block left";
  }
  launch(keep, 4, 64, Shared{numbers.data, true});
  for (int i = 0; i < 4; ++i) EXPECT_EQ(numbers.get(i), 0) << "control";
}

TEST(Emulator, BlocksOfASmallLaunchRunSideBySide) {
  const Numbers numbers;
  const auto wrong = [&](bool right) {
    numbers.clear();
    for (int launches = 0; launches < 100; ++launches) launch(pass_through, 3, 64, Shared{numbers.data, right});
    return numbers.get(3);
  };
  if (lazy()) {
    EXPECT_GT(wrong(false), 0) << "another block wrote there meanwhile";
  }
  EXPECT_EQ(wrong(true), 0) << "control";
}

TEST(Emulator, ThreadsOfABlockAreOrderedByBarriersOnly) {
  const Numbers numbers;
  launch(pass_on, 1, 64, Shared{numbers.data, false});
  if (lazy()) {
    EXPECT_EQ(numbers.get(0), 0) << "read before it was written";
  }
  launch(pass_on, 1, 64, Shared{numbers.data, true});
  EXPECT_EQ(numbers.get(0), 7) << "control";
}

TEST(Emulator, EndsAProgramWhoseThreadsMissABarrier) {
  const Numbers numbers;
  const auto run = [&](void (*kernel)(Shared), bool right) {
    launch(kernel, 1, 64, Shared{numbers.data, right});
    cudaDeviceSynchronize();
  };
  EXPECT_DEATH(run(bar_some, false), "others have returned|others wait for it at a barrier");
  EXPECT_DEATH(run(bar_most, false), "others have returned|others wait for it at a barrier");
  EXPECT_DEATH(run(bar_apart, false), "at different barriers, in lines");
  for (auto* kernel : {bar_some, bar_most, bar_apart}) {
    numbers.clear();
    run(kernel, true);
    EXPECT_EQ(numbers.get(0), 1) << "control";
  }
}

TEST(Emulator, EndsAProgramThatWaitsForAnEventBeforeItIsRecorded) {
  Stream first, second;
  Event event;
  EXPECT_DEATH(event.wait(second), "an event that was never recorded");
  event.record(first);
  event.wait(second);
  second.synchronize();
}

}  // namespace
}  // namespace llmtrain
