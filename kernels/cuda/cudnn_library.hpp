#pragma once
// cuDNN, found when the program runs: it starts and works without.

#include <cudnn.h>

#include <string>

#include "core/error.hpp"

namespace llmtrain::cuda {

/// The functions that are called, all of the C interface of graphs ("backend").
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

/// Null where no cuDNN of this major version is, or one that is too old for the graphs here; then `why` says so.
const CudnnLibrary* find_cudnn(std::string* why = nullptr);
/// The same; there must be one.
const CudnnLibrary& cudnn();

/// What the library refused.
class CudnnError : public Error {
 public:
  CudnnError(cudnnStatus_t status, const std::string& message) : Error(message), status_(status) {}
  cudnnStatus_t status() const { return status_; }

 private:
  cudnnStatus_t status_;
};
/// CudnnError; UserError(missing_input) where the installation is at fault.
void cudnn_check(cudnnStatus_t status, const char* call);

}  // namespace llmtrain::cuda
