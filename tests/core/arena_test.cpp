#include "core/arena.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "core/error.hpp"

namespace llmtrain {
namespace {

struct Free {
  void operator()(char* p) const { std::free(p); }
};

/// 64-byte aligned and exactly as large as the plan, so that the address sanitizer detects any access beyond it.
std::unique_ptr<char, Free> memory_for(const Arena& arena) {
  const auto bytes = static_cast<size_t>(std::max<int64_t>(arena.bytes(), 64));
  std::unique_ptr<char, Free> memory(static_cast<char*>(std::aligned_alloc(64, bytes)));
  std::memset(memory.get(), 0, bytes);
  return memory;
}

bool overlap(const Tensor& a, const Tensor& b) {
  const char *x = static_cast<const char*>(a.data), *y = static_cast<const char*>(b.data);
  return x < y + b.bytes() && y < x + a.bytes();
}

TEST(Arena, PlansByCategory) {
  Arena arena;
  Tensor a, b, c;
  arena.add(a, MemoryCategory::weights, "a", DType::f32, {10});      // 40 -> 64
  arena.add(b, MemoryCategory::weights, "b", DType::bf16, {33, 2});  // 132 -> 192
  arena.add(c, MemoryCategory::data, "c", DType::u8, {1});           // 1 -> 64
  EXPECT_EQ(arena.bytes(MemoryCategory::weights), 256);
  EXPECT_EQ(arena.bytes(MemoryCategory::data), 64);
  EXPECT_EQ(arena.bytes(MemoryCategory::optimizer), 0);
  EXPECT_EQ(arena.bytes(), 320);

  arena.reserve_scratch(100);  // the largest request counts: 100 -> 128
  arena.reserve_scratch(20);
  EXPECT_EQ(arena.bytes(), 448);
  EXPECT_EQ(arena.bytes(MemoryCategory::activations), 128);

  arena.reserve_workspace(10);  // in the same way as scratch
  arena.reserve_workspace(200);
  EXPECT_EQ(arena.bytes(), 704);
  EXPECT_EQ(arena.bytes(MemoryCategory::workspace), 256);
  EXPECT_EQ(arena.workspace().bytes(), 256);
  EXPECT_TRUE(arena.workspace().empty()) << "before the commit";

  int64_t sum = 0;
  for (int i = 0; i < memory_category_count; ++i) sum += arena.bytes(static_cast<MemoryCategory>(i));
  EXPECT_EQ(sum, arena.bytes());
  EXPECT_EQ(arena.requests()[1].name, "b");
  EXPECT_EQ(arena.requests()[1].offset, 64);
  EXPECT_EQ(arena.requests()[1].bytes, 192);
}

TEST(Arena, PlansBeyondTheMachine) {
  Arena arena;
  Tensor t;
  arena.add(t, MemoryCategory::weights, "huge", DType::f32, {int64_t{1} << 40, 8});
  EXPECT_EQ(arena.bytes(), int64_t{1} << 45);
  EXPECT_TRUE(t.empty());
  EXPECT_EQ(t.dim(1), 8) << "shapes are known before there is memory";
}

TEST(Arena, TensorsAreAlignedAndApart) {
  Arena arena;
  std::vector<Tensor> tensors(20);
  for (size_t i = 0; i < tensors.size(); ++i) {
    arena.add(tensors[i], MemoryCategory::activations, "t", DType::bf16, {static_cast<int64_t>(1 + 37 * i)});
  }
  arena.reserve_scratch(64);
  arena.reserve_workspace(100);
  const auto memory = memory_for(arena);
  arena.commit(memory.get());
  Arena::Frame frame(arena);
  tensors.push_back(frame.take(DType::f32, {16}));
  tensors.push_back(arena.workspace());
  for (size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensors[i].data) % 64, 0u);
    std::memset(tensors[i].data, static_cast<int>(i), static_cast<size_t>(tensors[i].bytes()));
    for (size_t j = 0; j < i; ++j) EXPECT_FALSE(overlap(tensors[i], tensors[j])) << i << " " << j;
  }
  EXPECT_TRUE(overlap(tensors[3], tensors[3].rows(5, 1))) << "control";
}

TEST(Arena, IsFrozenOnceCommitted) {
  Arena arena;
  Tensor a, b;
  arena.add(a, MemoryCategory::weights, "a", DType::f32, {4});
  EXPECT_FALSE(arena.committed());
  const auto memory = memory_for(arena);
  EXPECT_THROW(arena.commit(nullptr), Error);
  EXPECT_THROW(arena.commit(memory.get() + 4), Error);
  arena.commit(memory.get());
  EXPECT_TRUE(arena.committed());
  EXPECT_EQ(a.data, memory.get());
  EXPECT_THROW(arena.add(b, MemoryCategory::weights, "b", DType::f32, {4}), Error);
  EXPECT_THROW(arena.reserve_scratch(1), Error);
  EXPECT_THROW(arena.reserve_workspace(1), Error);
  EXPECT_THROW(arena.commit(memory.get()), Error);
}

TEST(Arena, WhatIsSharedLiesApart) {
  Arena arena, together;
  Tensor a, b, c;
  for (Arena* plan : {&together, &arena}) {
    plan->add(a, MemoryCategory::weights, "a", DType::f32, {10});
    plan->add(b, MemoryCategory::gradients, "b", DType::f32, {20}, MemoryScope::shared);
    plan->add(c, MemoryCategory::gradients, "c", DType::f32, {4}, MemoryScope::shared);
    plan->reserve_scratch(64);
    EXPECT_EQ(plan->shared_bytes(), 128 + 64);
    EXPECT_EQ(plan->bytes(), 64 + 128 + 64 + 64);
    EXPECT_EQ(plan->bytes(MemoryCategory::gradients), 128 + 64);
    if (plan == &together) {  // fits into one piece as well
      const auto memory = memory_for(together);
      together.commit(memory.get());
      Arena::Frame frame(together);
      const std::array<Tensor, 4> all = {a, b, c, frame.take(DType::f32, {16})};
      for (size_t i = 0; i < all.size(); ++i) {
        std::memset(all[i].data, 1, static_cast<size_t>(all[i].bytes()));
        for (size_t j = 0; j < i; ++j) EXPECT_FALSE(overlap(all[i], all[j])) << i << " " << j;
      }
    }
  }
  const auto own = memory_for(arena), shared = memory_for(arena);
  EXPECT_THROW(arena.commit(nullptr, own.get()), Error);
  EXPECT_THROW(arena.commit(shared.get() + 4, own.get()), Error);
  arena.commit(shared.get(), own.get());
  EXPECT_EQ(a.data, own.get());
  EXPECT_EQ(b.data, shared.get());
  EXPECT_EQ(c.data, shared.get() + 128);
  Arena::Frame frame(arena);
  EXPECT_EQ(frame.take(DType::f32, {16}).data, own.get() + 64);
}

TEST(Arena, FramesStackAndReturnWhatTheyTook) {
  Arena arena;
  arena.reserve_scratch(256);
  const auto memory = memory_for(arena);
  {
    Arena::Frame early(arena);
    EXPECT_THROW(early.take(DType::f32, {1}), Error) << "before the commit";
  }
  arena.commit(memory.get());
  Arena::Frame outer(arena);
  const Tensor kept = outer.take(DType::f32, {16});  // 64 bytes
  void* first = nullptr;
  {
    Arena::Frame inner(arena);
    const Tensor t = inner.take(DType::f32, {32});  // 128 bytes
    first = t.data;
    EXPECT_FALSE(overlap(t, kept));
    EXPECT_THROW(inner.take(DType::f32, {17}), Error) << "68 bytes, 64 are left";
    EXPECT_NO_THROW(inner.take(DType::f32, {16}));
  }
  const Tensor again = outer.take(DType::bf16, {2});
  EXPECT_EQ(again.data, first) << "what the inner frame took is free again";
}

TEST(Arena, CategoriesHaveNames) {
  std::set<std::string_view> names;
  for (int i = 0; i < memory_category_count; ++i) names.insert(name_of(static_cast<MemoryCategory>(i)));
  EXPECT_EQ(names.size(), static_cast<size_t>(memory_category_count));
  EXPECT_EQ(name_of(MemoryCategory::gradients), "gradients");
  EXPECT_EQ(name_of(MemoryCategory::workspace), "workspace");
}

}  // namespace
}  // namespace llmtrain
