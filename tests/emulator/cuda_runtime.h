#pragma once
// The part of the CUDA runtime that the program uses, on the host: see emulator.hpp. Names and meanings are NVIDIA's
// (CUDA Runtime API reference).

#include <cstddef>
#include <type_traits>
#include <typeinfo>

#include "emulator/blocks.hpp"
#include "emulator/emulator.hpp"
#include "emulator/language.hpp"

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInsufficientDriver = 35,
  cudaErrorDevicesUnavailable = 46,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorECCUncorrectable = 214,
  cudaErrorNvlinkUncorrectable = 220,
  cudaErrorHostMemoryAlreadyRegistered = 712,
  cudaErrorNotReady = 600,
  cudaErrorStreamCaptureUnjoined = 904
};
enum cudaMemcpyKind {
  cudaMemcpyHostToHost,
  cudaMemcpyHostToDevice,
  cudaMemcpyDeviceToHost,
  cudaMemcpyDeviceToDevice,
  cudaMemcpyDefault
};
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };
enum cudaDeviceAttr {
  cudaDevAttrMultiProcessorCount,
  cudaDevAttrComputeCapabilityMajor,
  cudaDevAttrComputeCapabilityMinor,
  cudaDevAttrMaxSharedMemoryPerBlockOptin
};
enum cudaStreamCaptureMode {
  cudaStreamCaptureModeGlobal,
  cudaStreamCaptureModeThreadLocal,
  cudaStreamCaptureModeRelaxed
};
enum cudaStreamCaptureStatus { cudaStreamCaptureStatusNone, cudaStreamCaptureStatusActive };
enum cudaDataType_t { CUDA_R_32F, CUDA_R_16BF, CUDA_R_16F, CUDA_R_8I, CUDA_R_32I };
using cudaDataType = cudaDataType_t;

inline constexpr unsigned cudaStreamNonBlocking = 1;
inline constexpr unsigned cudaEventDisableTiming = 2;
inline constexpr unsigned cudaEventBlockingSync = 1;
inline constexpr unsigned cudaHostAllocDefault = 0, cudaHostAllocPortable = 1;
inline constexpr unsigned cudaHostRegisterDefault = 0, cudaHostRegisterPortable = 1;

struct CUevent_st;
struct CUgraph_st;
struct CUgraphExec_st;
using cudaStream_t = CUstream_st*;
using cudaEvent_t = CUevent_st*;
using cudaGraph_t = CUgraph_st*;
using cudaGraphExec_t = CUgraphExec_st*;
using dim3 = llmtrain::emulator::Index;

struct cudaUUID_t {
  char bytes[16];
};
struct cudaDeviceProp {
  char name[256];
  cudaUUID_t uuid;
  size_t totalGlobalMem;
  size_t sharedMemPerBlockOptin;
  int major, minor, multiProcessorCount;
};
struct cudaLaunchAttribute;
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
  cudaLaunchAttribute* attrs = nullptr;
  unsigned numAttrs = 0;
};
struct cudaPointerAttributes {
  int type;  ///< cudaMemoryType
  int device;
  void *devicePointer, *hostPointer;
};
enum cudaMemoryType { cudaMemoryTypeUnregistered, cudaMemoryTypeHost, cudaMemoryTypeDevice };

const char* cudaGetErrorString(cudaError_t code);
const char* cudaGetErrorName(cudaError_t code);
cudaError_t cudaGetLastError();
cudaError_t cudaPeekAtLastError();

cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);
cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int device);
cudaError_t cudaRuntimeGetVersion(int* version);
cudaError_t cudaDriverGetVersion(int* version);
cudaError_t cudaDeviceSynchronize();

cudaError_t cudaMalloc(void** data, size_t bytes);
template <class T>
cudaError_t cudaMalloc(T** data, size_t bytes) {
  return cudaMalloc(reinterpret_cast<void**>(data), bytes);
}
cudaError_t cudaFree(void* data);
cudaError_t cudaMallocHost(void** data, size_t bytes);
cudaError_t cudaHostAlloc(void** data, size_t bytes, unsigned flags);
cudaError_t cudaFreeHost(void* data);
cudaError_t cudaHostRegister(void* data, size_t bytes, unsigned flags);
cudaError_t cudaHostUnregister(void* data);
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* data);
cudaError_t cudaMemGetInfo(size_t* available, size_t* total);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind);
cudaError_t cudaMemsetAsync(void* data, int value, size_t bytes, cudaStream_t stream);
cudaError_t cudaMemset(void* data, int value, size_t bytes);

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority);
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags = 0);
using cudaHostFn_t = void (*)(void*);
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream = nullptr);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long flags = 0);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);

namespace llmtrain::emulator {

/// Result of a call, kept for cudaGetLastError if it is an error.
cudaError_t result(cudaError_t code);
using AnyKernel = void (*)();
cudaError_t allow_shared_memory(AnyKernel kernel, int bytes);
/// True if a GPU would accept the launch.
cudaError_t check_launch(const cudaLaunchConfig_t& config, AnyKernel kernel);
void launch_kernel(const cudaLaunchConfig_t& config, const char* name, std::function<void()> thread);

}  // namespace llmtrain::emulator

template <class... T>
cudaError_t cudaFuncSetAttribute(void (*kernel)(T...), cudaFuncAttribute /*the only one*/, int value) {
  return llmtrain::emulator::allow_shared_memory(reinterpret_cast<llmtrain::emulator::AnyKernel>(kernel), value);
}

namespace llmtrain::emulator {
/// Padding between an argument's members has arbitrary contents.
template <class T>
void check_argument([[maybe_unused]] T argument, [[maybe_unused]] const char* kernel) {
#if __has_builtin(__builtin_clear_padding)
  __builtin_clear_padding(&argument);
  expect_no_host_pointers(&argument, sizeof argument, kernel);
#endif
}
}  // namespace llmtrain::emulator

template <class... Parameter, class... Argument>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameter...),
                               Argument&&... arguments) {
  static_assert((std::is_trivially_copyable_v<std::remove_cv_t<Parameter>> && ...), "arguments travel as bytes");
  static_assert((sizeof(Parameter) + ... + 0) <= 4096, "a kernel takes 4 KiB of arguments");
  const cudaError_t code =
      llmtrain::emulator::check_launch(*config, reinterpret_cast<llmtrain::emulator::AnyKernel>(kernel));
  if (code != cudaSuccess) return code;
  const char* name = typeid(void(Parameter...)).name();
  (llmtrain::emulator::check_argument<std::remove_cv_t<Parameter>>(arguments, name), ...);
  llmtrain::emulator::launch_kernel(*config, name, [=] { kernel(arguments...); });
  return cudaSuccess;
}
