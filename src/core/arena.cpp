#include "core/arena.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace llmtrain {

std::string_view name_of(MemoryCategory category) {
  static constexpr std::array<std::string_view, memory_category_count> names = {
      "weights", "gradients", "optimizer", "activations", "kv_cache", "communication", "data", "workspace"};
  return names[static_cast<size_t>(category)];
}

namespace {

/// Returns a + b. A plan beyond 2^62 bytes is an error of the deck; the limit leaves room to add to a plan.
int64_t add_sizes(int64_t a, int64_t b) {
  int64_t sum = 0;
  if (b < 0 || __builtin_add_overflow(a, b, &sum) || sum > INT64_MAX / 2) {
    throw UserError(ExitCode::deck, "the run needs more than 2^62 bytes of memory: use a smaller model or micro-batch");
  }
  return sum;
}

int64_t bytes_of(DType dtype, std::initializer_list<int64_t> shape) {
  int64_t bytes = static_cast<int64_t>(size_of(dtype));
  for (const int64_t d : shape) {
    if (__builtin_mul_overflow(bytes, d, &bytes)) bytes = -1;
    if (bytes < 0) break;
  }
  return add_sizes(0, bytes);
}

}  // namespace

void Arena::add(Tensor& target, MemoryCategory category, std::string name, DType dtype,
                std::initializer_list<int64_t> shape, MemoryScope scope) {
  LLMTRAIN_CHECK(!committed(), fmt::format("memory for {} was requested after the plan was committed", name));
  target = Tensor(nullptr, dtype, shape);
  const int64_t bytes = aligned(bytes_of(dtype, shape));
  int64_t& end = sizes_[static_cast<size_t>(scope)];
  requests_.push_back({&target, category, std::move(name), scope, end, bytes});
  by_category_[static_cast<size_t>(category)] += bytes;
  end = add_sizes(end, bytes);
  add_sizes(sizes_[0], sizes_[1]);
}

void Arena::reserve_scratch(int64_t bytes) { reserve(scratch_bytes_, bytes); }
void Arena::reserve_workspace(int64_t bytes) { reserve(workspace_bytes_, bytes); }

void Arena::reserve(int64_t& largest, int64_t bytes) {
  LLMTRAIN_CHECK(!committed(), "temporary memory was reserved after the plan was committed");
  largest = std::max(largest, aligned(add_sizes(0, bytes)));
  add_sizes(add_sizes(sizes_[0] + sizes_[1], scratch_bytes_), workspace_bytes_);
}

int64_t Arena::bytes() const { return sizes_[0] + sizes_[1] + scratch_bytes_ + workspace_bytes_; }

int64_t Arena::bytes(MemoryCategory category) const {
  int64_t temporary = category == MemoryCategory::activations ? scratch_bytes_ : 0;
  if (category == MemoryCategory::workspace) temporary = workspace_bytes_;
  return by_category_[static_cast<size_t>(category)] + temporary;
}

Tensor Arena::workspace() const {
  char* data = committed() ? own_ + size(MemoryScope::own) + scratch_bytes_ : nullptr;
  return {data, DType::u8, {workspace_bytes_}};
}

void Arena::commit(void* shared, void* own) {
  LLMTRAIN_CHECK(!committed(), "the plan is already committed");
  for (const void* base : {shared, own}) {
    LLMTRAIN_CHECK(base != nullptr && reinterpret_cast<uintptr_t>(base) % 64 == 0,
                   "the arena needs 64-byte aligned memory");
  }
  own_ = static_cast<char*>(own);
  for (const Request& request : requests_) {
    char* base = request.scope == MemoryScope::shared ? static_cast<char*>(shared) : own_;
    request.target->data = base + request.offset;
  }
}

Tensor Arena::Frame::take(DType dtype, std::initializer_list<int64_t> shape) {
  Tensor t(nullptr, dtype, shape);
  const int64_t bytes = aligned(t.bytes());
  LLMTRAIN_CHECK(arena_.committed(), "scratch was used before the plan was committed");
  LLMTRAIN_CHECK(arena_.scratch_used_ + bytes <= arena_.scratch_bytes_,
                 fmt::format("scratch of {} bytes is too small for {} more", arena_.scratch_bytes_, bytes));
  t.data = arena_.own_ + arena_.size(MemoryScope::own) + arena_.scratch_used_;
  arena_.scratch_used_ += bytes;
  return t;
}

}  // namespace llmtrain
