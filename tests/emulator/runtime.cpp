#include <fmt/format.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include "emulator/copies.hpp"
#include "emulator/cuda_runtime.h"
#include "emulator/limits.hpp"

using namespace llmtrain::emulator;

namespace {

constexpr int granted_shared_memory = 48 << 10,
              max_shared_memory = 99 << 10;  // for compute capability 8.6, the minimum

thread_local int chosen_device = 0;
std::atomic<int> started_device = -1;  ///< device of the process's context
thread_local cudaError_t last_error = cudaSuccess;
std::atomic<bool> broken = false;

/// The devices of LLMTRAIN_EMULATOR_DEVICES that CUDA_VISIBLE_DEVICES lists, up to the first invalid one.
std::vector<int> visible_devices() {
  const int there = static_cast<int>(setting("LLMTRAIN_EMULATOR_DEVICES", 1));
  std::vector<int> devices;
  const char* given = std::getenv("CUDA_VISIBLE_DEVICES");
  if (given == nullptr) {
    for (int d = 0; d < there; ++d) devices.push_back(d);
    return devices;
  }
  std::istringstream list(given);
  for (std::string entry; std::getline(list, entry, ',');) {
    const int device = entry.empty() || entry.find_first_not_of("0123456789") != entry.npos ? -1 : std::stoi(entry);
    if (device < 0 || device >= there) break;
    devices.push_back(device);
  }
  return devices;
}

std::map<AnyKernel, int>& allowed_shared_memory() {
  static std::map<AnyKernel, int> one;
  return one;
}

std::atomic<int64_t> copy_count = 0;

enum class Side { device, pinned, pageable };
Side side_of(const void* data) {
  if (is_device(data)) return Side::device;
  return is_pinned(data) ? Side::pinned : Side::pageable;
}

bool kind_fits(cudaMemcpyKind kind, Side to, Side from) {
  const bool to_device = to == Side::device, from_device = from == Side::device;
  switch (kind) {
    case cudaMemcpyHostToHost:
      return !to_device && !from_device;
    case cudaMemcpyHostToDevice:
      return to_device && !from_device;
    case cudaMemcpyDeviceToHost:
      return !to_device && from_device;
    case cudaMemcpyDeviceToDevice:
      return to_device && from_device;
    case cudaMemcpyDefault:
      return true;
  }
  return false;
}

}  // namespace

const char* cudaGetErrorName(cudaError_t code) {
  switch (code) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorInsufficientDriver:
      return "cudaErrorInsufficientDriver";
    case cudaErrorNoDevice:
      return "cudaErrorNoDevice";
    case cudaErrorInvalidDevice:
      return "cudaErrorInvalidDevice";
    case cudaErrorDevicesUnavailable:
      return "cudaErrorDevicesUnavailable";
    case cudaErrorECCUncorrectable:
      return "cudaErrorECCUncorrectable";
    case cudaErrorNvlinkUncorrectable:
      return "cudaErrorNvlinkUncorrectable";
    case cudaErrorHostMemoryAlreadyRegistered:
      return "cudaErrorHostMemoryAlreadyRegistered";
    case cudaErrorNotReady:
      return "cudaErrorNotReady";
    case cudaErrorStreamCaptureUnjoined:
      return "cudaErrorStreamCaptureUnjoined";
  }
  return "unrecognized error code";
}
const char* cudaGetErrorString(cudaError_t code) { return cudaGetErrorName(code); }
cudaError_t cudaPeekAtLastError() { return last_error; }
cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }

cudaError_t cudaGetDeviceCount(int* count) {
  *count = static_cast<int>(visible_devices().size());
  return result(*count > 0 ? cudaSuccess : cudaErrorNoDevice);
}
cudaError_t cudaGetDevice(int* device) {
  *device = chosen_device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= static_cast<int>(visible_devices().size())) return result(cudaErrorInvalidDevice);
  chosen_device = device;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device < 0 || device >= static_cast<int>(visible_devices().size())) return result(cudaErrorInvalidDevice);
  *properties = {};
  std::snprintf(properties->name, sizeof properties->name, "emulated GPU");
  properties->uuid.bytes[15] = static_cast<char>(1 + visible_devices()[static_cast<size_t>(device)]);
  properties->totalGlobalMem = device_bytes_total();
  properties->sharedMemPerBlockOptin = max_shared_memory;
  const int64_t capability = setting("LLMTRAIN_EMULATOR_CAPABILITY", 86);
  properties->major = static_cast<int>(capability / 10);
  properties->minor = static_cast<int>(capability % 10);
  properties->multiProcessorCount = 4;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  cudaDeviceProp properties{};
  const cudaError_t code = cudaGetDeviceProperties(&properties, device);
  if (code != cudaSuccess) return code;
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = properties.multiProcessorCount;
      break;
    case cudaDevAttrComputeCapabilityMajor:
      *value = properties.major;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = properties.minor;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = max_shared_memory;
      break;
  }
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int device) {
  const std::vector<int> devices = visible_devices();
  if (device < 0 || device >= static_cast<int>(devices.size())) return result(cudaErrorInvalidDevice);
  const bool parts = setting("LLMTRAIN_EMULATOR_MIG", 0) != 0;
  std::snprintf(id, static_cast<size_t>(length), "0000:%02x:00.0",
                parts ? 0U : static_cast<unsigned>(devices[static_cast<size_t>(device)]));
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 12000;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) { return cudaRuntimeGetVersion(version); }

cudaError_t cudaMalloc(void** data, size_t bytes) {
  refuse_while_recording("cudaMalloc");
  refuse_another_context("cudaMalloc");
  count_allocation();
  *data = nullptr;
  if (bytes == 0) return cudaSuccess;
  *data = allocate_device(bytes);
  return result(*data != nullptr ? cudaSuccess : cudaErrorMemoryAllocation);
}
cudaError_t cudaFree(void* data) {
  if (data == nullptr) {  // creates the context
    if (fault().kind == "start") return result(cudaErrorDevicesUnavailable);
    started_device = chosen_device;
    return cudaSuccess;
  }
  refuse_while_recording("cudaFree");
  drain_all();
  free_device(data);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** data, size_t bytes, unsigned /*flags*/) {
  refuse_while_recording("cudaHostAlloc");
  refuse_another_context("cudaHostAlloc");
  count_allocation();
  *data = bytes > 0 ? allocate_pinned(bytes) : nullptr;
  return result(*data != nullptr || bytes == 0 ? cudaSuccess : cudaErrorMemoryAllocation);
}
cudaError_t cudaMallocHost(void** data, size_t bytes) { return cudaHostAlloc(data, bytes, cudaHostAllocDefault); }
cudaError_t cudaFreeHost(void* data) {
  if (data == nullptr) return cudaSuccess;
  drain_all();
  free_pinned(data);
  return cudaSuccess;
}
cudaError_t cudaHostRegister(void* data, size_t bytes, unsigned /*flags*/) {
  if (is_pinned(data)) return result(cudaErrorHostMemoryAlreadyRegistered);
  register_pinned(data, bytes);
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* data) {
  drain_all();
  unregister_pinned(data);
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* data) {
  refuse_another_context("cudaPointerGetAttributes");
  const Side side = side_of(data);
  *attributes = {};
  attributes->type = side == Side::device   ? cudaMemoryTypeDevice
                     : side == Side::pinned ? cudaMemoryTypeHost
                                            : cudaMemoryTypeUnregistered;
  attributes->device = chosen_device;
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* available, size_t* total) {
  refuse_another_context("cudaMemGetInfo");
  *total = device_bytes_total();
  *available = *total - device_bytes_used();
  return cudaSuccess;
}

int64_t llmtrain::emulator::copies() { return copy_count; }

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;
  const std::string what = fmt::format("a copy of {} bytes", bytes);
  const Side target = side_of(to), source = side_of(from);
  if (!kind_fits(kind, target, source)) return result(cudaErrorInvalidValue);
  if (target == Side::device) expect_device(to, bytes, what);
  if (source == Side::device) expect_device(from, bytes, what);
  if (target != source && (target == Side::device || source == Side::device)) ++copy_count;
  const bool pageable = target == Side::pageable || source == Side::pageable;
  if (pageable) {
    refuse_while_recording("a copy from or to pageable memory");
    count_pageable_copy();
  }
  if (source == Side::pageable) {  // copied before the call returns
    auto staged =
        std::make_shared<std::vector<char>>(static_cast<const char*>(from), static_cast<const char*>(from) + bytes);
    enqueue(stream, what, [=] { std::memcpy(to, staged->data(), bytes); });
  } else {
    enqueue(stream, what, [=] { std::memmove(to, from, bytes); });
  }
  if (target == Side::pageable) drain(stream);  // completed before the call returns
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  count_synchronization();
  const cudaError_t code = cudaMemcpyAsync(to, from, bytes, kind, nullptr);
  drain(nullptr);
  return code;
}
cudaError_t cudaMemsetAsync(void* data, int value, size_t bytes, cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;
  const std::string what = fmt::format("a memset of {} bytes", bytes);
  expect_device(data, bytes, what);
  enqueue(stream, what, [=] { set_device_bytes(data, value, bytes); });
  return cudaSuccess;
}
cudaError_t cudaMemset(void* data, int value, size_t bytes) { return cudaMemsetAsync(data, value, bytes, nullptr); }

namespace llmtrain::emulator {

cudaError_t result(cudaError_t code) {
  if (code != cudaSuccess) last_error = code;
  return code;
}

int current_device() { return chosen_device; }

void refuse_another_context(const char* call) {
  const int started = started_device;
  if (started < 0 || started == chosen_device) return;
  fail(std::string(call) + " in a thread whose GPU is " + std::to_string(chosen_device) + " while the process has " +
       std::to_string(started) + ": it would make a context there");
}

cudaError_t allow_shared_memory(AnyKernel kernel, int bytes) {
  count_attribute();
  if (bytes > max_shared_memory) return result(cudaErrorInvalidValue);
  allowed_shared_memory()[kernel] = bytes;
  return cudaSuccess;
}

cudaError_t check_launch(const cudaLaunchConfig_t& c, AnyKernel kernel) {
  if (broken) return result(cudaErrorECCUncorrectable);
  const auto found = allowed_shared_memory().find(kernel);
  const int allowed = found != allowed_shared_memory().end() ? found->second : granted_shared_memory;
  const bool good = c.gridDim.x >= 1 && c.gridDim.x <= 0x7FFFFFFF && c.gridDim.y >= 1 && c.gridDim.y <= 65535 &&
                    c.gridDim.z >= 1 && c.gridDim.z <= 65535 && c.blockDim.x >= 1 &&
                    c.blockDim.x * c.blockDim.y * c.blockDim.z <= 1024 &&
                    c.dynamicSmemBytes <= static_cast<size_t>(std::max(allowed, granted_shared_memory));
  return result(good ? cudaSuccess : cudaErrorInvalidValue);
}

void launch_kernel(const cudaLaunchConfig_t& config, const char* name, std::function<void()> thread) {
  static std::atomic<int64_t> launches = 0;
  const bool counts = std::string_view(name).find(fault().kernel) != std::string_view::npos;
  const int64_t number = counts ? ++launches : 0;
  std::function<bool()> ready;
  if (number == fault().number && fault().kind == "kernel") ready = [] { return false; };
  if (number == fault().number && fault().kind == "ecc") {
    enqueue(config.stream, name, [] { broken = true; });
    return;
  }
  enqueue(
      config.stream, name,
      [launch = Launch{config.gridDim, config.blockDim, config.dynamicSmemBytes}, thread = std::move(thread)] {
        count_launch();
        run(launch, thread);
      },
      std::move(ready));
}

bool gpu_is_broken() { return broken; }

const Fault& fault() {
  static const Fault of_rank = [] {
    Fault found;
    const char* given = std::getenv("LLMTRAIN_EMULATOR_FAULT");
    if (given == nullptr || *given == '\0') return found;
    int64_t rank = -1;
    std::istringstream text(given);
    text >> found.kind >> rank >> found.number;
    const std::set<std::string> kinds = {"hang", "lost", "kernel", "ecc", "start"};
    if (!text || !kinds.contains(found.kind)) fail("LLMTRAIN_EMULATOR_FAULT is not a fault");
    text >> found.kernel;
    return setting("OMPI_COMM_WORLD_RANK", 0) == rank ? found : Fault();
  }();
  return of_rank;
}

namespace {
std::atomic<int64_t> refused = 0;
}

bool refuses(std::initializer_list<int64_t> request) {
  const int64_t seed = setting("LLMTRAIN_EMULATOR_REFUSALS", -1);
  if (seed < 0) return false;
  auto hash = static_cast<uint64_t>(seed);
  for (const int64_t number : request) hash = (hash ^ static_cast<uint64_t>(number)) * 0x9E3779B97F4A7C15u ^ hash >> 29;
  if ((hash >> 40) % 2 == 0) return false;
  ++refused;
  return true;
}
int64_t refusals() { return refused; }

}  // namespace llmtrain::emulator
