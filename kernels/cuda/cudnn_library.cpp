#include "kernels/cuda/cudnn_library.hpp"

#include <dlfcn.h>

#include "core/machine.hpp"
#include "device/device.hpp"

namespace llmtrain::cuda {

namespace {

/// Before 9.15.1 replayed graphs may read out of bounds at lengths that are not multiples of 128; before 9.12 the
/// forward pass ignores the strides of lse.
constexpr size_t oldest_version = 91501;

/// Error for a library with missing or mixed sublibraries: another rank's may be complete, and its bits would differ.
bool is_broken_installation(cudnnStatus_t status) {
  return status == CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH || status == CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED ||
         status == CUDNN_STATUS_NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING ||
         status == CUDNN_STATUS_NOT_SUPPORTED_SUBLIBRARY_UNAVAILABLE;
}

template <class F>
bool find(void* library, const char* name, F& function) {
  function = reinterpret_cast<F>(dlsym(library, name));
  return function != nullptr;
}

/// The library, or the reason why it cannot be used.
struct Found {
  const CudnnLibrary* library;
  std::string why_not;
};
Found load() {
  const std::string name = "libcudnn.so." + std::to_string(CUDNN_MAJOR);
  void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);  // never closed
  if (library == nullptr) {
    const char* error = dlerror();
    return {nullptr, std::string(error != nullptr ? error : name) + ". Name its folder in LD_LIBRARY_PATH"};
  }
  static CudnnLibrary f{};
  const bool complete =
      find(library, "cudnnGetVersion", f.version) && find(library, "cudnnGetErrorString", f.error_text) &&
      find(library, "cudnnGetLastErrorString", f.last_error) && find(library, "cudnnCreate", f.create) &&
      find(library, "cudnnSetStream", f.set_stream) &&
      find(library, "cudnnBackendCreateDescriptor", f.create_descriptor) &&
      find(library, "cudnnBackendDestroyDescriptor", f.destroy_descriptor) &&
      find(library, "cudnnBackendSetAttribute", f.set_attribute) &&
      find(library, "cudnnBackendGetAttribute", f.get_attribute) && find(library, "cudnnBackendFinalize", f.finalize) &&
      find(library, "cudnnBackendExecute", f.execute);
  if (complete && f.version() >= oldest_version) return {&f, {}};
  return {nullptr, name + " is older than 9.15.1. Install a newer one"};
}

}  // namespace

const CudnnLibrary* find_cudnn(std::string* why) {
  static const Found found = load();
  if (why != nullptr) *why = found.why_not;
  return found.library;
}

const CudnnLibrary& cudnn() {
  LLMTRAIN_CHECK(find_cudnn() != nullptr, "cuDNN is called, but is not installed");
  return *find_cudnn();
}

void cudnn_check(cudnnStatus_t status, const char* call) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  char detail[1024] = "";
  cudnn().last_error(detail, sizeof detail);
  const std::string text = std::string(call) + " failed: " + cudnn().error_text(status) + " (" + detail + ")";
  if (is_broken_installation(status)) {
    throw UserError(ExitCode::missing_input, "cuDNN is installed on " + host_name() +
                                                 ", but some of its libraries, or NVRTC, cannot be loaded: " + text +
                                                 ". Install all of it, or set LLMTRAIN_ATTENTION=own");
  }
  throw CudnnError(status, text + device_fault());
}

}  // namespace llmtrain::cuda
