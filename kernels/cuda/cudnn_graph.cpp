#include "kernels/cuda/cudnn_graph.hpp"

#include <algorithm>
#include <utility>

namespace llmtrain::cuda {

CudnnDescriptor::CudnnDescriptor(cudnnBackendDescriptorType_t type) {
  cudnn_check(cudnn().create_descriptor(type, &raw_), "cudnnBackendCreateDescriptor");
}
CudnnDescriptor::~CudnnDescriptor() {
  if (raw_ != nullptr) cudnn().destroy_descriptor(raw_);
}
CudnnDescriptor::CudnnDescriptor(CudnnDescriptor&& other) noexcept : raw_(std::exchange(other.raw_, nullptr)) {}

void CudnnDescriptor::finalize() { cudnn_check(cudnn().finalize(raw_), "cudnnBackendFinalize"); }

void CudnnDescriptor::set_bytes(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
                                const void* values) {
  cudnn_check(cudnn().set_attribute(raw_, name, type, count, values), "cudnnBackendSetAttribute");
}
int64_t CudnnDescriptor::get_bytes(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
                                   void* values) const {
  int64_t found = 0;
  cudnn_check(cudnn().get_attribute(raw_, name, type, count, &found, values), "cudnnBackendGetAttribute");
  return found;
}

CudnnDims packed_strides(const CudnnDims& dims) { return {dims[1] * dims[2] * dims[3], dims[2] * dims[3], dims[3], 1}; }

CudnnValue CudnnGraph::tensor(int64_t id, cudnnDataType_t type, const CudnnDims& dims, const CudnnDims& strides,
                              bool passing, bool by_value) {
  CudnnDescriptor& d = parts_.emplace_back(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  d.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, id);
  d.set(CUDNN_ATTR_TENSOR_DATA_TYPE, type);
  d.set(CUDNN_ATTR_TENSOR_DIMENSIONS, dims.data(), dims.size());
  d.set(CUDNN_ATTR_TENSOR_STRIDES, strides.data(), strides.size());
  d.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, int64_t{16});
  d.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, passing);
  d.set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, by_value);
  d.finalize();
  return {d.raw(), dims};
}
CudnnValue CudnnGraph::stored(int64_t id, cudnnDataType_t type, const CudnnDims& dims, const CudnnDims& strides) {
  return tensor(id, type, dims, strides, false, false);
}
CudnnValue CudnnGraph::number(int64_t id) {
  return tensor(id, CUDNN_DATA_FLOAT, {1, 1, 1, 1}, {1, 1, 1, 1}, false, true);
}
CudnnValue CudnnGraph::passing(cudnnDataType_t type, const CudnnDims& dims, const CudnnDims& strides) {
  return tensor(next_id_++, type, dims, strides, true, false);
}

void CudnnGraph::matmul(const CudnnValue& a, const CudnnValue& b, const CudnnValue& c) {
  CudnnDescriptor& how = parts_.emplace_back(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
  how.set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_DATA_FLOAT);
  how.finalize();
  CudnnDescriptor& d = operation(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  d.set(CUDNN_ATTR_OPERATION_MATMUL_ADESC, a.tensor);
  d.set(CUDNN_ATTR_OPERATION_MATMUL_BDESC, b.tensor);
  d.set(CUDNN_ATTR_OPERATION_MATMUL_CDESC, c.tensor);
  d.set(CUDNN_ATTR_OPERATION_MATMUL_DESC, how.raw());
  d.finalize();
}

cudnnBackendDescriptor_t CudnnGraph::pointwise(cudnnPointwiseMode_t mode, cudnnDataType_t compute, int64_t axis) {
  CudnnDescriptor& how = parts_.emplace_back(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  how.set(CUDNN_ATTR_POINTWISE_MODE, mode);
  how.set(CUDNN_ATTR_POINTWISE_MATH_PREC, compute);
  if (axis >= 0) how.set(CUDNN_ATTR_POINTWISE_AXIS, axis);
  how.finalize();
  return how.raw();
}
void CudnnGraph::add_pointwise(cudnnBackendDescriptor_t how, const CudnnValue& x, const CudnnValue* b,
                               const CudnnValue* condition, const CudnnValue& y) {
  CudnnDescriptor& d = operation(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  d.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
  d.set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x.tensor);
  if (b != nullptr) d.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b->tensor);
  if (condition != nullptr) d.set(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, condition->tensor);
  d.set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y.tensor);
  d.finalize();
}
void CudnnGraph::apply(cudnnPointwiseMode_t mode, const CudnnValue& x, const CudnnValue& y) {
  add_pointwise(pointwise(mode, CUDNN_DATA_FLOAT), x, nullptr, nullptr, y);
}
void CudnnGraph::apply(cudnnPointwiseMode_t mode, const CudnnValue& x, const CudnnValue& b, const CudnnValue& y) {
  add_pointwise(pointwise(mode, CUDNN_DATA_FLOAT), x, &b, nullptr, y);
}
void CudnnGraph::compare(cudnnPointwiseMode_t mode, const CudnnValue& x, const CudnnValue& b, const CudnnValue& y) {
  add_pointwise(pointwise(mode, CUDNN_DATA_BOOLEAN), x, &b, nullptr, y);
}
void CudnnGraph::select(const CudnnValue& condition, const CudnnValue& x, const CudnnValue& b, const CudnnValue& y) {
  add_pointwise(pointwise(CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT), x, &b, &condition, y);
}
void CudnnGraph::index(int64_t axis, const CudnnValue& shaped_like, const CudnnValue& y) {
  add_pointwise(pointwise(CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_INT32, axis), shaped_like, nullptr, nullptr, y);
}

void CudnnGraph::reduce(cudnnReduceTensorOp_t what, const CudnnValue& x, const CudnnValue& y) {
  CudnnDescriptor& how = parts_.emplace_back(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
  how.set(CUDNN_ATTR_REDUCTION_OPERATOR, what);
  how.set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_DATA_FLOAT);
  how.finalize();
  CudnnDescriptor& d = operation(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
  d.set(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x.tensor);
  d.set(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y.tensor);
  d.set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, how.raw());
  d.finalize();
}

void CudnnGraph::reshape(const CudnnValue& x, const CudnnValue& y) {
  CudnnDescriptor& d = operation(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
  d.set(CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x.tensor);
  d.set(CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y.tensor);
  d.finalize();
}

CudnnDescriptor CudnnGraph::finish(cudnnHandle_t handle) const {
  std::vector<cudnnBackendDescriptor_t> all;
  for (const CudnnDescriptor& d : operations_) all.push_back(d.raw());
  CudnnDescriptor graph(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, all.data(), all.size());
  if (handle != nullptr) graph.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, handle);
  graph.finalize();
  return graph;
}

namespace {

bool is_deterministic(const CudnnDescriptor& config) {
  const CudnnDescriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  cudnnBackendDescriptor_t raw = engine.raw();
  config.get(CUDNN_ATTR_ENGINECFG_ENGINE, &raw, 1);
  std::array<cudnnBackendNumericalNote_t, CUDNN_NUMERICAL_NOTE_TYPE_COUNT> notes{};
  const auto count = std::min<int64_t>(engine.get(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, notes.data(), notes.size()),
                                       static_cast<int64_t>(notes.size()));
  return std::find(notes.begin(), notes.begin() + count, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) ==
         notes.begin() + count;
}

/// Whether another rank, or the next run, may be luckier with the same engine; another one would have other bits.
bool is_of_the_moment(cudnnStatus_t status) {
  return status == CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED ||
         status == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED || status >= CUDNN_STATUS_EXECUTION_FAILED;
}

}  // namespace

std::vector<CudnnDescriptor> find_engines(const CudnnDescriptor& graph, const CudnnDescriptor* device) {
  CudnnDescriptor heuristics(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph.raw());
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_HEUR_MODE_A);
  if (device != nullptr) heuristics.set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, device->raw());
  heuristics.finalize();
  const int64_t count = heuristics.get<cudnnBackendDescriptor_t>(CUDNN_ATTR_ENGINEHEUR_RESULTS, nullptr, 0);
  std::vector<CudnnDescriptor> configs;
  std::vector<cudnnBackendDescriptor_t> raw;
  for (int64_t i = 0; i < count; ++i) raw.push_back(configs.emplace_back(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR).raw());
  const int64_t found = heuristics.get(CUDNN_ATTR_ENGINEHEUR_RESULTS, raw.data(), raw.size());
  std::vector<CudnnDescriptor> chosen;
  for (int64_t i = 0; i < std::min(found, count); ++i) {
    if (is_deterministic(configs[static_cast<size_t>(i)])) chosen.push_back(std::move(configs[static_cast<size_t>(i)]));
  }
  return chosen;
}

int64_t workspace_bytes(const CudnnDescriptor& engine) {
  int64_t bytes = 0;
  engine.get(CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE, &bytes, 1);
  return bytes;
}

std::optional<CudnnDescriptor> make_plan(const std::vector<CudnnDescriptor>& engines, int64_t max_workspace_bytes,
                                         cudnnHandle_t handle, const CudnnDescriptor* device) {
  for (const CudnnDescriptor& engine : engines) {
    try {
      CudnnDescriptor plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
      plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, engine.raw());
      if (handle != nullptr) plan.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, handle);
      if (device != nullptr) plan.set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, device->raw());
      plan.finalize();
      if (plan_workspace_bytes(plan) <= max_workspace_bytes) return plan;
    } catch (const CudnnError& error) {
      if (is_of_the_moment(error.status())) throw;
    }
  }
  return std::nullopt;
}

int64_t plan_workspace_bytes(const CudnnDescriptor& plan) {
  int64_t bytes = 0;
  plan.get(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, &bytes, 1);
  return bytes;
}

}  // namespace llmtrain::cuda
