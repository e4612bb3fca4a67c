#pragma once
// cuDNN, loaded at run time: the program also works without it.

#include <cudnn.h>

#include <string>

#include "core/error.hpp"

namespace llmtrain::cuda {

/// The functions that are used, all of the graph C API ("backend").
struct CudnnLibrary {
  decltype(&cudnnGetVersion) version;
  decltype(&cudnnGetErrorString) error_text;
  decltype(&cudnnGetLastErrorString) last_error;
  decltype(&cudnnCreate) create;
  decltype(&cudnnSetStream) set_stream;
  decltype(&cudnnBackendCreateDescriptor) create_descriptor;
  decltype(&cudnnBackendDestroyDescriptor) destroy_descriptor;
  decltype(&cudnnBackendSetAttribute) set_attribute;
  decltype(&cudnnBackendGetAttribute) get_attribute;
  decltype(&cudnnBackendFinalize) finalize;
  decltype(&cudnnBackendExecute) execute;
};

/// Returns null if no cuDNN of this major version is found, or one that is too old for the graphs here; `why` then
/// receives the reason.
const CudnnLibrary* find_cudnn(std::string* why = nullptr);
/// Returns the library, which must exist.
const CudnnLibrary& cudnn();

/// Error of a call of the library.
class CudnnError : public Error {
 public:
  CudnnError(cudnnStatus_t status, const std::string& message) : Error(message), status_(status) {}
  cudnnStatus_t status() const { return status_; }

 private:
  cudnnStatus_t status_;
};
/// Throws CudnnError, or UserError(missing_input) if the installation is at fault.
void cudnn_check(cudnnStatus_t status, const char* call);

}  // namespace llmtrain::cuda
