#pragma once
// All memory of a run: planned first, allocated once, then frozen. The plan is what --estimate prints.

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "core/tensor.hpp"

namespace llmtrain {

enum class MemoryCategory : uint8_t { weights, gradients, optimizer, activations, communication, data, workspace };
inline constexpr int memory_category_count = 7;
std::string_view name_of(MemoryCategory category);

/// Whose: of this process alone, or read by other ranks of the node where it lies.
enum class MemoryPlace : uint8_t { own, shared };

class Arena {
 public:
  struct Request {
    Tensor* target;  ///< filled by commit(); must stay at its address until then
    MemoryCategory category;
    std::string name;
    MemoryPlace place;
    int64_t offset;  ///< bytes in its place, 64-byte aligned
    int64_t bytes;
  };

  /// Registers `target` (dtype and shape are set now, the pointer at commit). Error after commit.
  void add(Tensor& target, MemoryCategory category, std::string name, DType dtype, std::initializer_list<int64_t> shape,
           MemoryPlace place = MemoryPlace::own);
  /// The stack of temporaries holds at least `bytes` (the maximum of all calls counts, not the sum).
  void reserve_scratch(int64_t bytes);
  /// Kernels find at least `bytes` for what they hold beside their operands (the maximum of all calls counts).
  void reserve_workspace(int64_t bytes);

  int64_t bytes() const;  ///< planned in all, scratch and workspace included
  int64_t bytes(MemoryCategory category) const;
  int64_t shared_bytes() const { return size(MemoryPlace::shared); }  ///< of bytes(): what others read
  const std::vector<Request>& requests() const { return requests_; }

  /// Points every target into `base`, which has bytes() bytes, 64-byte aligned, zero-filled; afterwards add() is an
  /// error.
  void commit(void* base) { commit(base, static_cast<char*>(base) + shared_bytes()); }
  /// The same where the shared_bytes() lie apart from the rest.
  void commit(void* shared, void* own);
  bool committed() const { return own_ != nullptr; }
  /// What reserve_workspace() asked for, u8; its memory is there after commit().
  Tensor workspace() const;

  /// Stack of temporaries inside a step: what a Frame took is free again when it ends.
  class Frame {
   public:
    explicit Frame(Arena& arena) : arena_(arena), mark_(arena.scratch_used_) {}
    ~Frame() { arena_.scratch_used_ = mark_; }
    Frame(const Frame&) = delete;
    Frame& operator=(const Frame&) = delete;
    /// 64-byte aligned, contents undefined; Error when the planned scratch does not suffice.
    Tensor take(DType dtype, std::initializer_list<int64_t> shape);

   private:
    Arena& arena_;
    int64_t mark_;
  };
  int64_t scratch_peak() const { return scratch_peak_; }

  static int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }

 private:
  void reserve(int64_t& largest, int64_t bytes);
  int64_t size(MemoryPlace place) const { return sizes_[static_cast<size_t>(place)]; }

  std::vector<Request> requests_;
  std::array<int64_t, memory_category_count> by_category_{};
  std::array<int64_t, 2> sizes_{};  ///< by place, without scratch
  int64_t scratch_bytes_ = 0;
  int64_t workspace_bytes_ = 0;
  int64_t scratch_used_ = 0;
  int64_t scratch_peak_ = 0;
  char* own_ = nullptr;
};

}  // namespace llmtrain
