#pragma once
// The arena holds all memory of a run: planned first, allocated once, then frozen. --estimate prints the plan.

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "core/tensor.hpp"

namespace llmtrain {

enum class MemoryCategory : uint8_t {
  weights,
  gradients,
  optimizer,
  activations,
  kv_cache,
  communication,
  data,
  workspace
};
inline constexpr int memory_category_count = 8;
std::string_view name_of(MemoryCategory category);

/// Memory of this process alone, or memory that other ranks of the node read directly.
enum class MemoryScope : uint8_t { own, shared };

class Arena {
 public:
  struct Request {
    Tensor* target;  ///< filled by commit(); its address must not change until then
    MemoryCategory category;
    std::string name;
    MemoryScope scope;
    int64_t offset;  ///< bytes from the start of its memory, 64-byte aligned
    int64_t bytes;
  };

  /// Registers `target`: sets dtype and shape now, the pointer at commit. Throws Error after commit.
  void add(Tensor& target, MemoryCategory category, std::string name, DType dtype, std::initializer_list<int64_t> shape,
           MemoryScope scope = MemoryScope::own);
  /// Reserves at least `bytes` for the stack of temporaries (the maximum over all calls, not the sum).
  void reserve_scratch(int64_t bytes);
  /// Reserves at least `bytes` of workspace for kernels (the maximum over all calls).
  void reserve_workspace(int64_t bytes);

  int64_t bytes() const;  ///< total planned bytes, including scratch and workspace
  int64_t bytes(MemoryCategory category) const;
  int64_t shared_bytes() const { return size(MemoryScope::shared); }  ///< bytes that other ranks read
  const std::vector<Request>& requests() const { return requests_; }

  /// Points every target into `base`, which has bytes() bytes, 64-byte aligned, zero-filled. Any later add() is an
  /// error.
  void commit(void* base) { commit(base, static_cast<char*>(base) + shared_bytes()); }
  /// Does the same with the shared_bytes() in a separate allocation.
  void commit(void* shared, void* own);
  bool committed() const { return own_ != nullptr; }
  /// The reserved workspace, u8; its memory exists after commit().
  Tensor workspace() const;

  /// A frame on the stack of temporaries; its destructor frees all that it allocated.
  class Frame {
   public:
    explicit Frame(Arena& arena) : arena_(arena), mark_(arena.scratch_used_) {}
    ~Frame() { arena_.scratch_used_ = mark_; }
    Frame(const Frame&) = delete;
    Frame& operator=(const Frame&) = delete;
    /// Allocates a tensor, 64-byte aligned, contents undefined. Throws Error when the planned scratch is too small.
    Tensor take(DType dtype, std::initializer_list<int64_t> shape);

   private:
    Arena& arena_;
    int64_t mark_;
  };

  static int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }

 private:
  void reserve(int64_t& largest, int64_t bytes);
  int64_t size(MemoryScope scope) const { return sizes_[static_cast<size_t>(scope)]; }

  std::vector<Request> requests_;
  std::array<int64_t, memory_category_count> by_category_{};
  std::array<int64_t, 2> sizes_{};  ///< by MemoryScope, without scratch
  int64_t scratch_bytes_ = 0;
  int64_t workspace_bytes_ = 0;
  int64_t scratch_used_ = 0;
  char* own_ = nullptr;
};

}  // namespace llmtrain
