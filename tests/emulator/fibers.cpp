// Fibers are switched by longjmp, which its fortified version rejects.
#undef _FORTIFY_SOURCE
#include <fmt/format.h>
#include <omp.h>
#include <setjmp.h>
#include <ucontext.h>

#include <cstring>
#include <memory>
#include <vector>

#include "emulator/emulator.hpp"
#include "emulator/language.hpp"

constinit thread_local llmtrain::emulator::Index threadIdx, blockIdx, blockDim, gridDim;

namespace llmtrain::emulator {

namespace {

constexpr size_t stack_bytes = size_t{64} << 10;

struct Fiber;

/// Threads that wait for one another: a warp, or the block.
struct Group {
  int running = 0;  ///< threads that have not returned
  int64_t generation = 0;
  std::vector<Fiber*> waiting;
};

/// Runs threads of a block one after the other; a new fiber continues with the next thread when one has to wait. So a
/// block whose threads never wait is a loop.
struct Fiber {
  ucontext_t start{};
  jmp_buf place_left;
  bool started = false;
  std::unique_ptr<char[]> stack = std::make_unique_for_overwrite<char[]>(stack_bytes);
  unsigned thread = 0;
};

struct Warp : Group {
  Exchanged slots[2];  ///< for even and odd generations: a lane may read the last one's while others write the next
};

/// The block of this host thread.
struct Block {
  const std::function<void()>* body = nullptr;
  const unsigned* order = nullptr;  ///< order of its threads
  std::vector<std::unique_ptr<Fiber>> fibers;
  std::vector<Fiber*> idle;
  std::vector<Fiber*> ready;  ///< fibers that can continue after a wait, from `first_ready` on
  size_t first_ready = 0;
  std::vector<std::unique_ptr<Warp>> warps;
  Group all;
  Barrier barrier{};  ///< barrier at which they wait
  std::vector<std::byte> shared;
  jmp_buf scheduler;
  Fiber* current = nullptr;
  unsigned threads = 0, begun = 0, returned = 0;
};
constinit thread_local Block* block = nullptr;  // persists at the end of the thread

Warp& warp_of(unsigned thread) { return *block->warps[thread / warp_size]; }

void release(Group& group) {
  ++group.generation;
  block->ready.insert(block->ready.end(), group.waiting.begin(), group.waiting.end());
  group.waiting.clear();
}

void leave(Group& group) {
  --group.running;
  if (group.running > 0 && static_cast<int>(group.waiting.size()) == group.running) release(group);
}

/// Not inlined, so that thread-local variables are looked up again after every switch.
[[gnu::noinline]] bool run_next_thread(Fiber& fiber) {
  if (block->begun == block->threads) return false;
  fiber.thread = block->order[block->begun++];
  threadIdx = {fiber.thread, 0, 0};
  (*block->body)();
  ++block->returned;
  if (!block->all.waiting.empty()) fail("a thread of a block returns, and others wait for it at a barrier");
  leave(warp_of(fiber.thread));
  leave(block->all);
  return true;
}

[[gnu::noinline]] void leave_fiber(Fiber& fiber) {
  if (_setjmp(fiber.place_left) == 0) _longjmp(block->scheduler, 1);
}

void work() {
  Fiber& fiber = *block->current;
  while (true) {
    while (run_next_thread(fiber)) {
    }
    block->idle.push_back(&fiber);
    leave_fiber(fiber);
  }
}

/// Avoids the system calls of swapcontext, which saves the signal mask.
[[gnu::noinline]] void enter(Fiber& fiber) {
  block->current = &fiber;
  if (_setjmp(block->scheduler) != 0) return;
  if (fiber.started) _longjmp(fiber.place_left, 1);
  fiber.started = true;
  getcontext(&fiber.start);
  fiber.start.uc_stack.ss_sp = fiber.stack.get();
  fiber.start.uc_stack.ss_size = stack_bytes;
  fiber.start.uc_link = nullptr;
  makecontext(&fiber.start, work, 0);
  setcontext(&fiber.start);
}

void wait(Group& group) {
  if (group.running == 1) return release(group);
  Fiber& fiber = *block->current;
  group.waiting.push_back(&fiber);
  if (static_cast<int>(group.waiting.size()) == group.running) release(group);
  leave_fiber(fiber);  // the last one to arrive, too: they continue in the order of arrival
}

Fiber& idle_fiber() {
  if (block->idle.empty()) {
    block->fibers.push_back(std::make_unique<Fiber>());
    return *block->fibers.back();
  }
  Fiber& fiber = *block->idle.back();
  block->idle.pop_back();
  return fiber;
}

void prepare_block(const Launch& launch, const unsigned* order, const std::function<void()>& thread) {
  block->body = &thread;
  block->order = order;
  block->threads = launch.block.x;
  block->begun = block->returned = 0;
  const unsigned warps = (block->threads + warp_size - 1) / warp_size;
  while (block->warps.size() < warps) block->warps.push_back(std::make_unique<Warp>());
  for (unsigned w = 0; w < warps; ++w) {
    block->warps[w]->running = static_cast<int>(std::min<unsigned>(warp_size, block->threads - w * warp_size));
  }
  block->all.running = static_cast<int>(block->threads);
  // not zero, so that reads of uninitialised memory show
  block->shared.assign(launch.shared_bytes + 128, std::byte{0x5A});
}

void run_block(const Launch& launch, Index index, const unsigned* order, const std::function<void()>& thread) {
  if (block == nullptr) block = new Block();
  prepare_block(launch, order, thread);
  blockIdx = index;
  blockDim = launch.block;
  gridDim = launch.grid;
  while (block->returned < block->threads) {
    if (block->first_ready < block->ready.size()) {
      Fiber& fiber = *block->ready[block->first_ready++];
      threadIdx = {fiber.thread, 0, 0};
      enter(fiber);
    } else if (block->begun < block->threads) {
      block->ready.clear();
      block->first_ready = 0;
      enter(idle_fiber());
    } else {
      fail("threads of a block wait for each other in different places");
    }
  }
  // The last waiting threads have returned, or become idle.
  block->ready.clear();
  block->first_ready = 0;
}

}  // namespace

const Exchanged& exchange(const void* mine, size_t bytes) {
  Warp& warp = warp_of(block->current->thread);
  Exchanged& slots = warp.slots[warp.generation % 2];
  std::memcpy(slots[static_cast<size_t>(own_lane())].data(), mine, bytes);
  wait(warp);
  return slots;
}

void wait_for_block(const Barrier& barrier) {
  if (block->returned > 0) fail("a barrier is reached by some threads of a block: others have returned");
  if (block->all.waiting.empty()) block->barrier = barrier;
  const Barrier& first = block->barrier;
  if (first.line != barrier.line || std::strcmp(first.file, barrier.file) != 0) {
    fail(fmt::format("threads of a block are at different barriers, in lines {} and {}", first.line, barrier.line));
  }
  wait(block->all);
}

void* dynamic_shared_memory() {
  const auto address = reinterpret_cast<uintptr_t>(block->shared.data());
  return block->shared.data() + (128 - address % 128) % 128;
}

void run(const Launch& launch, const std::function<void()>& thread) {
  if (launch.block.y != 1 || launch.block.z != 1) fail("blocks are rows of threads");
  const int64_t rows = launch.grid.x, columns = launch.grid.y, blocks = rows * columns * launch.grid.z;
  const bool worth_it = blocks > 1 && blocks * launch.block.x >= 8192;
  const std::vector<unsigned> order = order_of(static_cast<unsigned>(blocks)), threads = order_of(launch.block.x);
#pragma omp parallel for schedule(dynamic) if (worth_it)
  for (int64_t i = 0; i < blocks; ++i) {
    const int64_t b = order[static_cast<size_t>(i)];
    run_block(launch,
              {static_cast<unsigned>(b % rows), static_cast<unsigned>(b / rows % columns),
               static_cast<unsigned>(b / rows / columns)},
              threads.data(), thread);
  }
}

}  // namespace llmtrain::emulator
