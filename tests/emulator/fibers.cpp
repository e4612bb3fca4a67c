// Fibers are switched by longjmp, which its fortified version rejects.
#undef _FORTIFY_SOURCE
#include <fmt/format.h>
#include <omp.h>
#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "emulator/blocks.hpp"
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

/// Runs threads of a block one after the other, up to the end of a warp; a new fiber continues with the next thread
/// when one has to wait. So a warp whose threads never wait is a loop.
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

/// Static shared memory of a kernel.
struct SharedMemory {
  const void* key;
  std::byte* data;
};
constexpr auto arbitrary = std::byte{0x5A};  // not zero, so that reads of uninitialised memory show

/// A block that this host thread runs.
struct Block {
  Index index;
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
  std::map<const void*, std::vector<std::byte>> of_kernels;  ///< static shared memory of all kernels so far
  std::vector<SharedMemory> in_use;                          ///< that of this block
  jmp_buf scheduler;
  Fiber* current = nullptr;
  unsigned threads = 0, begun = 0, returned = 0;
};
constinit thread_local Block* block = nullptr;  // the running one; persists at the end of the thread

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

/// Not inlined, so that thread-local variables are looked up again after every switch. Returns whether the warp has
/// more threads to begin.
[[gnu::noinline]] bool run_next_thread(Fiber& fiber) {
  if (block->begun == block->threads) return false;
  fiber.thread = block->order[block->begun++];
  threadIdx = {fiber.thread, 0, 0};
  (*block->body)();
  ++block->returned;
  if (!block->all.waiting.empty()) fail("a thread of a block returns, and others wait for it at a barrier");
  leave(warp_of(fiber.thread));
  leave(block->all);
  return block->begun % warp_size != 0;
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

/// Blocks of a launch, taken by host threads one by one.
struct Blocks {
  const Launch& launch;
  const std::function<void()>& body;
  std::vector<unsigned> order, threads;
  uint64_t seed;  ///< of the turns that blocks take on a host thread; 0: one after another
  std::atomic<int64_t> taken{0};
};

void start_block(const Blocks& blocks, int64_t number) {
  const Launch& launch = blocks.launch;
  const int64_t b = blocks.order[static_cast<size_t>(number)], rows = launch.grid.x, columns = launch.grid.y;
  block->index = {static_cast<unsigned>(b % rows), static_cast<unsigned>(b / rows % columns),
                  static_cast<unsigned>(b / rows / columns)};
  block->body = &blocks.body;
  block->order = blocks.threads.data();
  block->threads = launch.block.x;
  block->begun = block->returned = 0;
  const unsigned warps = (block->threads + warp_size - 1) / warp_size;
  while (block->warps.size() < warps) block->warps.push_back(std::make_unique<Warp>());
  for (unsigned w = 0; w < warps; ++w) {
    block->warps[w]->running = static_cast<int>(std::min<unsigned>(warp_size, block->threads - w * warp_size));
  }
  block->all.running = static_cast<int>(block->threads);
  block->shared.assign(launch.shared_bytes + 128, arbitrary);
  block->in_use.clear();
}

/// Runs a fiber of the block until it waits or ends a warp; returns whether threads are left.
bool run_a_fiber() {
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
  if (block->returned < block->threads) return true;
  // The last waiting threads have returned, or become idle.
  block->ready.clear();
  block->first_ready = 0;
  return false;
}

/// Number of fibers that a block runs before the other one's turn: from 1 to 1024, so that blocks are in the same phase
/// of a kernel as well as in different ones.
class Turns {
 public:
  explicit Turns(uint64_t seed) : state_(seed) {}
  int next() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return 1 << (state_ >> 33) % 11;
  }

 private:
  uint64_t state_;
};

constexpr size_t side_by_side = 2;  // blocks of a host thread

/// This host thread's part of a launch.
void run_blocks(Blocks& blocks) {
  thread_local auto* const resident = new std::array<Block, side_by_side>();  // persist at the end of the thread
  std::array<Block*, side_by_side> running{};
  blockDim = blocks.launch.block;
  gridDim = blocks.launch.grid;
  Turns turns(blocks.seed);
  const size_t places = blocks.seed == 0 ? 1 : side_by_side;
  bool any = true;
  while (std::exchange(any, false)) {
    for (size_t i = 0; i < places; ++i) {
      block = running[i];
      if (block == nullptr) {
        const int64_t number = blocks.taken++;
        if (number >= static_cast<int64_t>(blocks.order.size())) continue;
        running[i] = block = &(*resident)[i];
        start_block(blocks, number);
      }
      any = true;
      blockIdx = block->index;
      int turn = turns.next();
      while (run_a_fiber() && (places == 1 || --turn > 0)) {
      }
      if (block->returned == block->threads) running[i] = nullptr;
    }
  }
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

void* static_shared_memory(const void* key, size_t bytes) {
  for (const SharedMemory& memory : block->in_use) {
    if (memory.key == key) return memory.data;
  }
  std::vector<std::byte>& memory = block->of_kernels[key];
  memory.assign(bytes, arbitrary);
  block->in_use.push_back({key, memory.data()});
  return memory.data();
}

void run(const Launch& launch, const std::function<void()>& thread) {
  if (launch.block.y != 1 || launch.block.z != 1) fail("blocks are rows of threads");
  const int64_t count = int64_t{launch.grid.x} * launch.grid.y * launch.grid.z;
  const bool worth_it = count > 1 && count * launch.block.x >= 8192;
  Blocks blocks{launch, thread, order_of(static_cast<unsigned>(count)), order_of(launch.block.x), seed_of_turns()};
#pragma omp parallel if (worth_it)
  run_blocks(blocks);
}

}  // namespace llmtrain::emulator
