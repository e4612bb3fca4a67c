#include "kernels/cuda/cudnn_attention.hpp"

#include <cuda_runtime.h>

#include <algorithm>
#include <cfloat>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/number_text.hpp"
#include "kernels/cuda/cudnn_attention_graph.hpp"

namespace llmtrain {

namespace cuda {

namespace {

constexpr int64_t alignment = 256;

int64_t aligned(int64_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }

/// Of the GPU that is in use; where there is none (--estimate), one that cuDNN is taken on.
int capability() {
  int device = 0, major = 9, minor = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess ||
      cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) != cudaSuccess) {
    cudaGetLastError();  // not an error of the next call
    return 90;
  }
  return 10 * major + minor;
}

AttentionChoice choice() {
  static const AttentionChoice of_run = attention_choice();
  return of_run;
}

/// UserError where it must be, and is not there.
bool is_there() {
  static const bool there = [] {
    if (choice() == AttentionChoice::own) return false;
    std::string why;
    const bool found = find_cudnn(&why) != nullptr;
    if (!found) refuse_missing_cudnn(choice(), why);
    return found;
  }();
  return there;
}
/// Asked before a GPU is chosen, too, which may be another one than the first.
bool is_chosen() { return is_there() && (choice() == AttentionChoice::cudnn || cudnn_is_faster(capability())); }

/// Sequences that a call takes: all, or as many as have scores enough. cudnn_suits: at least one.
int64_t sequences_at_once(const AttentionShape& s, int64_t rows) {
  return std::min(rows / s.longest, max_cudnn_scores / s.heads / s.longest / s.longest);
}
CudnnAttention problem_of(const AttentionShape& s, int64_t sequences, DType dtype, bool backward) {
  return {sequences, s.longest, s.heads, s.kv_heads, s.head_dim, cudnn_type(dtype), backward};
}
int64_t delta_bytes(const AttentionShape& s, int64_t rows) {
  return aligned(s.heads * rows * static_cast<int64_t>(sizeof(float)));
}

/// Addresses by id, and how far it is from there to the next sequence.
struct Addresses {
  std::vector<int64_t> ids, strides;
  std::vector<void*> pointers;
  void add(int64_t id, const void* p, int64_t stride = 0) {
    ids.push_back(id);
    strides.push_back(stride);
    pointers.push_back(const_cast<void*>(p));  // NOLINT: the library reads through it
  }
  void advance(int64_t sequences) {
    for (size_t i = 0; i < ids.size(); ++i) pointers[i] = static_cast<char*>(pointers[i]) + sequences * strides[i];
  }
};

/// A graph that has become kernels.
class Plan {
 public:
  Plan(cudnnHandle_t handle, const CudnnAttention& a) {
    build_attention(graph_, a);
    whole_.emplace(graph_.finish(handle));
    engines_ = find_engines(*whole_, nullptr);
    std::optional<CudnnDescriptor> plan = make_plan(engines_, max_cudnn_workspace_bytes(a), handle);
    if (!plan) return;
    workspace_ = plan_workspace_bytes(*plan);
    plan_.emplace(std::move(*plan));
  }
  /// False: the library has no engine for it.
  explicit operator bool() const { return plan_.has_value(); }
  int64_t workspace() const { return workspace_; }

  void run(cudnnHandle_t handle, const Addresses& addresses, void* workspace) const {
    CudnnDescriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, addresses.ids.data(), addresses.ids.size());
    pack.set_addresses(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, addresses.pointers.data(), addresses.pointers.size());
    pack.set_addresses(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, &workspace, 1);
    pack.finalize();
    cudnn_check(cudnn().execute(handle, plan_->raw(), pack.raw()), "cudnnBackendExecute");
  }

 private:
  CudnnGraph graph_;
  std::vector<CudnnDescriptor> engines_;
  std::optional<CudnnDescriptor> whole_, plan_;
  int64_t workspace_ = 0;
};

/// The process's plans, one a shape.
class Plans {
 public:
  Plans() { cudnn_check(cudnn().create(&handle_), "cudnnCreate"); }
  const Plan& of(const CudnnAttention& a) {
    const auto found = plans_.find(a);
    return found != plans_.end() ? found->second : plans_.try_emplace(a, handle_, a).first->second;
  }
  cudnnHandle_t handle_on(const Stream& stream) const {
    cudnn_check(cudnn().set_stream(handle_, static_cast<cudaStream_t>(stream.native())), "cudnnSetStream");
    return handle_;
  }

 private:
  cudnnHandle_t handle_ = nullptr;
  std::map<CudnnAttention, Plan> plans_;
};
Plans& plans() {
  static auto* all = new Plans();  // stays: at exit the driver may be gone before it
  return *all;
}

bool is_taken(const Tensor& qkv, const Batch& batch, const AttentionShape& shape, const Dropout& dropout) {
  return cudnn_workspace_bytes(shape, batch.tokens) > 0 && qkv.dtype != DType::f32 && !dropout.active() &&
         is_uniform(batch, shape) && reinterpret_cast<uintptr_t>(qkv.data) % 16 == 0;
}

/// Runs the pass, delta at the head of the workspace and the library's behind it. False: there is no engine for one of
/// the two passes; our own backward pass could not read the library's lse.
bool run(const AttentionShape& shape, const Batch& batch, DType dtype, bool backward, Addresses addresses,
         const Tensor& workspace, const Stream& stream) {
  const int64_t all = batch.tokens / shape.longest;
  const int64_t part = sequences_at_once(shape, batch.tokens);
  const int64_t at_once = backward ? part : all;  // forward no scores are kept
  const auto plan_of = [&](int64_t sequences, bool of_backward) -> const Plan& {
    return plans().of(problem_of(shape, sequences, dtype, of_backward));
  };
  if (!plan_of(all, false) || !plan_of(part, true) || (all % part != 0 && !plan_of(all % part, true))) {
    refuse_missing_cudnn(choice(), "the library has no engine for sequences of " + std::to_string(shape.longest) +
                                       " tokens, heads of " + std::to_string(shape.head_dim) +
                                       " elements and this GPU. Try another version of it");
    return false;
  }
  const auto base = reinterpret_cast<uintptr_t>(workspace.data);
  auto* delta = reinterpret_cast<char*>(static_cast<uintptr_t>(aligned(static_cast<int64_t>(base))));
  char* own = backward ? delta + delta_bytes(shape, at_once * shape.longest) : delta;
  const float lowest = -FLT_MAX, one = 1;
  addresses.add(id_scale, &shape.scale);
  addresses.add(id_lowest, &lowest);
  if (backward) {
    addresses.add(id_one, &one);
    addresses.add(id_delta, delta);
  }
  for (int64_t first = 0; first < all; first += at_once) {
    const Plan& plan = plan_of(std::min(at_once, all - first), backward);
    LLMTRAIN_CHECK(own + plan.workspace() <= static_cast<char*>(workspace.data) + workspace.bytes(),
                   "cuDNN's attention wants more workspace than was planned: set LLMTRAIN_ATTENTION=own");
    plan.run(plans().handle_on(stream), addresses, own);
    addresses.advance(at_once);
  }
  return true;
}

/// Queries, keys and values of qkv, or of its gradient.
void add_parts(Addresses& addresses, const Tensor& qkv, const AttentionShape& s, int64_t query, int64_t key,
               int64_t value) {
  constexpr int64_t element = 2;
  const auto* base = static_cast<const char*>(qkv.data);
  const int64_t head = s.head_dim * element, stride = s.longest * (s.heads + 2 * s.kv_heads) * head;
  addresses.add(query, base, stride);
  addresses.add(key, base + s.heads * head, stride);
  addresses.add(value, base + (s.heads + s.kv_heads) * head, stride);
}
/// Of out and its gradient, and of lse.
int64_t output_stride(const AttentionShape& s) { return s.longest * s.heads * s.head_dim * 2; }
int64_t lse_stride(const AttentionShape& s) { return s.heads * s.longest * static_cast<int64_t>(sizeof(float)); }

/// Of a shape that suits, where the library is there; 0: too few rows.
int64_t wanted_bytes(const AttentionShape& shape, int64_t rows) {
  if (rows < shape.longest) return 0;
  const int64_t at_once = sequences_at_once(shape, rows);
  return alignment + delta_bytes(shape, at_once * shape.longest) +
         max_cudnn_workspace_bytes(problem_of(shape, at_once, DType::bf16, true));
}

}  // namespace

int64_t cudnn_workspace_bytes(const AttentionShape& shape, int64_t rows) {
  if (shape.longest == 0 || !is_chosen()) return 0;
  if (!cudnn_suits(shape)) {
    refuse_missing_cudnn(choice(),
                         "its graphs have no such attention: they take sequences of a multiple of 64 tokens (here " +
                             std::to_string(shape.longest) + "), heads of up to 128 elements, a multiple of 8 (here " +
                             std::to_string(shape.head_dim) +
                             "), at most 2^31 scores of one sequence over all its heads, no cap of the scores and no "
                             "window. Change these keys of the deck");
    return 0;
  }
  return wanted_bytes(shape, rows);
}

bool cudnn_attention_forward(const Tensor& out, const Tensor& lse, const Tensor& qkv, const Batch& batch,
                             const AttentionShape& shape, const Dropout& dropout, const Tensor& workspace,
                             Stream& stream) {
  if (!is_taken(qkv, batch, shape, dropout)) return false;
  Addresses addresses;
  add_parts(addresses, qkv, shape, id_query, id_key, id_value);
  addresses.add(id_out, out.data, output_stride(shape));
  addresses.add(id_lse, lse.data, lse_stride(shape));
  return run(shape, batch, qkv.dtype, false, std::move(addresses), workspace, stream);
}

bool cudnn_attention_backward(const AttentionBackward& args, const Batch& batch, const AttentionShape& shape,
                              const Dropout& dropout, const Tensor& workspace, Stream& stream) {
  if (!is_taken(args.qkv, batch, shape, dropout)) return false;
  Addresses addresses;
  add_parts(addresses, args.qkv, shape, id_query, id_key, id_value);
  add_parts(addresses, args.dqkv, shape, id_dquery, id_dkey, id_dvalue);
  addresses.add(id_out, args.out.data, output_stride(shape));
  addresses.add(id_dout, args.dout.data, output_stride(shape));
  addresses.add(id_lse, args.lse.data, lse_stride(shape));
  return run(shape, batch, args.qkv.dtype, true, std::move(addresses), workspace, stream);
}

}  // namespace cuda

std::string attention_library() {
  if (!cuda::is_chosen()) return {};
  const size_t v = cuda::cudnn().version();
  return "cuDNN " + std::to_string(v / 10000) + "." + std::to_string(v / 100 % 100) + "." + std::to_string(v % 100);
}

std::string attention_assumption(const AttentionShape& shape, int64_t rows) {
  const int64_t bytes = cuda::cudnn_suits(shape) ? cuda::wanted_bytes(shape, rows) : 0;
  if (bytes == 0) return {};
  const std::string workspace = "workspace (" + bytes_text(static_cast<double>(bytes)) + ")";
  if (const std::string library = attention_library(); !library.empty()) {
    return "attention: the " + workspace + " of " + library + ", which was found here, is counted";
  }
  if (cuda::choice() != cuda::AttentionChoice::automatic || !cuda::cudnn_is_faster(cuda::capability())) return {};
  return "attention: no cuDNN that can be taken was found here; a run on Hopper that finds one wants its " + workspace +
         ", which is not counted";
}

}  // namespace llmtrain
