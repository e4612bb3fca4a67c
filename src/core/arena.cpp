#include "core/arena.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace llmtrain {

std::string_view name_of(MemoryCategory category) {
  static constexpr std::array<std::string_view, memory_category_count> names = {
      "weights", "gradients", "optimizer", "activations", "communication", "data", "workspace"};
  return names[static_cast<size_t>(category)];
}

void Arena::add(Tensor& target, MemoryCategory category, std::string name, DType dtype,
                std::initializer_list<int64_t> shape) {
  LLMTRAIN_CHECK(!committed(), fmt::format("memory for {} asked for after the plan was committed", name));
  target = Tensor(nullptr, dtype, shape);
  const int64_t bytes = aligned(target.bytes());
  requests_.push_back({&target, category, std::move(name), size_, bytes});
  by_category_[static_cast<size_t>(category)] += bytes;
  size_ += bytes;
}

void Arena::reserve_scratch(int64_t bytes) {
  LLMTRAIN_CHECK(!committed(), "scratch reserved after the plan was committed");
  scratch_bytes_ = std::max(scratch_bytes_, aligned(bytes));
}

int64_t Arena::bytes() const { return size_ + scratch_bytes_; }

int64_t Arena::bytes(MemoryCategory category) const {
  const int64_t scratch = category == MemoryCategory::activations ? scratch_bytes_ : 0;
  return by_category_[static_cast<size_t>(category)] + scratch;
}

void Arena::commit(void* base) {
  LLMTRAIN_CHECK(!committed(), "a plan is committed once");
  LLMTRAIN_CHECK(base != nullptr && reinterpret_cast<uintptr_t>(base) % 64 == 0,
                 "the arena wants 64-byte aligned memory");
  base_ = static_cast<char*>(base);
  for (const Request& request : requests_) {
    if (request.target != nullptr) request.target->data = base_ + request.offset;
  }
}

Tensor Arena::Frame::take(DType dtype, std::initializer_list<int64_t> shape) {
  Tensor t(nullptr, dtype, shape);
  const int64_t bytes = aligned(t.bytes());
  LLMTRAIN_CHECK(arena_.committed(), "scratch used before the plan was committed");
  LLMTRAIN_CHECK(arena_.scratch_used_ + bytes <= arena_.scratch_bytes_,
                 fmt::format("scratch of {} bytes is too small for {} more", arena_.scratch_bytes_, bytes));
  t.data = arena_.base_ + arena_.size_ + arena_.scratch_used_;
  arena_.scratch_used_ += bytes;
  arena_.scratch_peak_ = std::max(arena_.scratch_peak_, arena_.scratch_used_);
  return t;
}

}  // namespace llmtrain
