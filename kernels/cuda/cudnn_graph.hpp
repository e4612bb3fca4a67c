#pragma once
// Graphs of operations that cuDNN makes one kernel of.

#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "kernels/cuda/cudnn_library.hpp"

namespace llmtrain::cuda {

/// Owns a descriptor of the library.
class CudnnDescriptor {
 public:
  explicit CudnnDescriptor(cudnnBackendDescriptorType_t type);
  ~CudnnDescriptor();
  CudnnDescriptor(CudnnDescriptor&& other) noexcept;
  CudnnDescriptor& operator=(CudnnDescriptor&&) = delete;

  template <class T>
  void set(cudnnBackendAttributeName_t name, const T* values, size_t count) {
    set_bytes(name, type_of(T{}), static_cast<int64_t>(count), values);
  }
  template <class T>
  void set(cudnnBackendAttributeName_t name, T value) {
    set(name, &value, 1);
  }
  /// A descriptor is a void*, as an address is.
  void set_addresses(cudnnBackendAttributeName_t name, void* const* values, size_t count) {
    set_bytes(name, CUDNN_TYPE_VOID_PTR, static_cast<int64_t>(count), values);
  }
  /// Of the values that there are, at most `count`, to `values`; how many there are.
  template <class T>
  int64_t get(cudnnBackendAttributeName_t name, T* values, size_t count) const {
    return get_bytes(name, type_of(T{}), static_cast<int64_t>(count), values);
  }
  void finalize();
  cudnnBackendDescriptor_t raw() const { return raw_; }

 private:
  static cudnnBackendAttributeType_t type_of(int64_t) { return CUDNN_TYPE_INT64; }
  static cudnnBackendAttributeType_t type_of(bool) { return CUDNN_TYPE_BOOLEAN; }
  static cudnnBackendAttributeType_t type_of(char) { return CUDNN_TYPE_CHAR; }
  static cudnnBackendAttributeType_t type_of(cudnnHandle_t) { return CUDNN_TYPE_HANDLE; }
  static cudnnBackendAttributeType_t type_of(cudnnDataType_t) { return CUDNN_TYPE_DATA_TYPE; }
  static cudnnBackendAttributeType_t type_of(cudnnPointwiseMode_t) { return CUDNN_TYPE_POINTWISE_MODE; }
  static cudnnBackendAttributeType_t type_of(cudnnReduceTensorOp_t) { return CUDNN_TYPE_REDUCTION_OPERATOR_TYPE; }
  static cudnnBackendAttributeType_t type_of(cudnnBackendHeurMode_t) { return CUDNN_TYPE_HEUR_MODE; }
  static cudnnBackendAttributeType_t type_of(cudnnBackendNumericalNote_t) { return CUDNN_TYPE_NUMERICAL_NOTE; }
  static cudnnBackendAttributeType_t type_of(cudnnBackendDescriptor_t) { return CUDNN_TYPE_BACKEND_DESCRIPTOR; }
  void set_bytes(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count, const void* values);
  int64_t get_bytes(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
                    void* values) const;

  cudnnBackendDescriptor_t raw_ = nullptr;
};

using CudnnDims = std::array<int64_t, 4>;
CudnnDims packed_strides(const CudnnDims& dims);

/// A value of a graph.
struct CudnnValue {
  cudnnBackendDescriptor_t tensor;
  CudnnDims dims;
};

class CudnnGraph {
 public:
  /// In memory, at the address that execution names under the id.
  CudnnValue stored(int64_t id, cudnnDataType_t type, const CudnnDims& dims, const CudnnDims& strides);
  /// A number of fp32 that execution names under the id, on the host.
  CudnnValue number(int64_t id);
  /// Between operations only.
  CudnnValue passing(cudnnDataType_t type, const CudnnDims& dims, const CudnnDims& strides);
  CudnnValue passing(cudnnDataType_t type, const CudnnDims& dims) { return passing(type, dims, packed_strides(dims)); }

  // What they write comes last. All compute in fp32.
  void matmul(const CudnnValue& a, const CudnnValue& b, const CudnnValue& c);
  void apply(cudnnPointwiseMode_t mode, const CudnnValue& x, const CudnnValue& y);
  void apply(cudnnPointwiseMode_t mode, const CudnnValue& x, const CudnnValue& b, const CudnnValue& y);
  void compare(cudnnPointwiseMode_t mode, const CudnnValue& x, const CudnnValue& b, const CudnnValue& y);
  /// y = condition ? x : b
  void select(const CudnnValue& condition, const CudnnValue& x, const CudnnValue& b, const CudnnValue& y);
  /// The place of each element along an axis, int32.
  void index(int64_t axis, const CudnnValue& shaped_like, const CudnnValue& y);
  void reduce(cudnnReduceTensorOp_t operation, const CudnnValue& x, const CudnnValue& y);
  void reshape(const CudnnValue& x, const CudnnValue& y);

  /// The whole, for a device of this process, or without a handle for one that is only described.
  CudnnDescriptor finish(cudnnHandle_t handle) const;
  size_t operations() const { return operations_.size(); }

 private:
  CudnnValue tensor(int64_t id, cudnnDataType_t type, const CudnnDims& dims, const CudnnDims& strides, bool passing,
                    bool by_value);
  CudnnDescriptor& operation(cudnnBackendDescriptorType_t type) { return operations_.emplace_back(type); }
  cudnnBackendDescriptor_t pointwise(cudnnPointwiseMode_t mode, cudnnDataType_t compute, int64_t axis = -1);
  void add_pointwise(cudnnBackendDescriptor_t how, const CudnnValue& x, const CudnnValue* b,
                     const CudnnValue* condition, const CudnnValue& y);

  int64_t next_id_ = 1000;  ///< of values that nobody names
  std::vector<CudnnDescriptor> parts_, operations_;
};

/// The engines that give the same bits each time, the library's first choice first.
/// `device` describes a device that is not there; null: that of the graph's handle.
std::vector<CudnnDescriptor> find_engines(const CudnnDescriptor& graph, const CudnnDescriptor* device);
int64_t workspace_bytes(const CudnnDescriptor& engine);
/// What the first of the engines that can makes of its graph, ready to run with at most so many bytes of workspace;
/// none: no engine can. For the handle's device or, where that is null, the one described. CudnnError where it is not
/// the engine that fails but memory or the driver.
std::optional<CudnnDescriptor> make_plan(const std::vector<CudnnDescriptor>& engines, int64_t max_workspace_bytes,
                                         cudnnHandle_t handle, const CudnnDescriptor* device = nullptr);
int64_t plan_workspace_bytes(const CudnnDescriptor& plan);

}  // namespace llmtrain::cuda
