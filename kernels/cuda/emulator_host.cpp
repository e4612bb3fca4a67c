// Fibers are left and entered by longjmp, which the fortified one takes for an error.
#undef _FORTIFY_SOURCE
#include <setjmp.h>
#include <ucontext.h>

#include <memory>
#include <vector>

#include "core/error.hpp"
#include "kernels/cuda/emulator.hpp"

namespace llmtrain::emulator {

thread_local Place place;

namespace {

constexpr size_t stack_bytes = size_t{64} << 10;

/// Those who wait for one another: a warp, or the block.
struct Group {
  int running = 0;  ///< threads that have not returned
  int arrived = 0;
  int64_t generation = 0;
};

struct Fiber {
  ucontext_t start{};
  jmp_buf place_left;
  bool started = false;
  std::unique_ptr<char[]> stack = std::make_unique<char[]>(stack_bytes);
  Index thread;
  const Group* waits_for = nullptr;
  int64_t generation = 0;  ///< that it waits for the end of
  bool returned = false;
};

struct Warp : Group {
  Exchanged slots[2];  ///< of even and odd generations: a lane may read those of the last while others write the next
};

/// The block that runs on this host thread.
struct Block {
  const std::function<void()>* body = nullptr;
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  Group all;
  std::vector<std::byte> shared;
  jmp_buf scheduler;
  Fiber* current = nullptr;
};
thread_local Block block;

void start_fiber() {
  (*block.body)();
  block.current->returned = true;
  _longjmp(block.scheduler, 1);
}

/// Without the system calls of swapcontext, which keeps the mask of signals, too.
[[gnu::noinline]] void enter(Fiber& fiber) {
  if (_setjmp(block.scheduler) != 0) return;
  if (fiber.started) _longjmp(fiber.place_left, 1);
  fiber.started = true;
  setcontext(&fiber.start);
}
[[gnu::noinline]] void leave_fiber(Fiber& fiber) {
  if (_setjmp(fiber.place_left) == 0) _longjmp(block.scheduler, 1);
}

void leave(Group& group) {
  --group.running;
  if (group.running > 0 && group.arrived == group.running) {
    group.arrived = 0;
    ++group.generation;
  }
}

void wait(Group& group) {
  if (++group.arrived == group.running) {
    group.arrived = 0;
    ++group.generation;
    return;
  }
  block.current->waits_for = &group;
  block.current->generation = group.generation;
  leave_fiber(*block.current);
}

bool can_run(const Fiber& fiber) {
  return !fiber.returned && (fiber.waits_for == nullptr || fiber.waits_for->generation != fiber.generation);
}

Warp& warp_of(const Fiber& fiber) { return block.warps[fiber.thread.x / warp_size]; }

void run_block(const Launch& launch, Index index, const std::function<void()>& thread) {
  const unsigned threads = launch.block.x;
  block.body = &thread;
  block.fibers.resize(std::max<size_t>(block.fibers.size(), threads));
  block.warps.assign((threads + warp_size - 1) / warp_size, {});
  block.all = {.running = static_cast<int>(threads)};
  block.shared.assign(launch.shared_bytes, std::byte{0x5A});  // nobody may count on zeros
  for (unsigned t = 0; t < threads; ++t) {
    Fiber& fiber = block.fibers[t];
    fiber.thread = {t, 0, 0};
    fiber.waits_for = nullptr;
    fiber.returned = false;
    ++warp_of(fiber).running;
    fiber.started = false;
    getcontext(&fiber.start);
    fiber.start.uc_stack.ss_sp = fiber.stack.get();
    fiber.start.uc_stack.ss_size = stack_bytes;
    fiber.start.uc_link = nullptr;
    makecontext(&fiber.start, start_fiber, 0);
  }
  for (unsigned left = threads; left > 0;) {
    bool moved = false;
    for (unsigned t = 0; t < threads; ++t) {
      Fiber& fiber = block.fibers[t];
      if (!can_run(fiber)) continue;
      moved = true;
      fiber.waits_for = nullptr;
      block.current = &fiber;
      place = {fiber.thread, index, launch.block, launch.grid};
      enter(fiber);
      if (!fiber.returned) continue;
      --left;
      leave(warp_of(fiber));
      leave(block.all);
    }
    LLMTRAIN_CHECK(moved, "threads of a block wait for each other in different places");
  }
}

}  // namespace

const Exchanged& exchange(const void* mine, size_t bytes) {
  Warp& warp = warp_of(*block.current);
  Exchanged& slots = warp.slots[warp.generation % 2];
  std::memcpy(slots[static_cast<size_t>(own_lane())].data(), mine, bytes);
  wait(warp);
  return slots;
}

void wait_for_block() { wait(block.all); }

void* dynamic_shared_memory() { return block.shared.data(); }

void run(const Launch& launch, const std::function<void()>& thread) {
  LLMTRAIN_CHECK(launch.block.x <= 1024 && launch.block.y == 1 && launch.block.z == 1, "blocks are rows of threads");
  for (unsigned z = 0; z < launch.grid.z; ++z) {
    for (unsigned y = 0; y < launch.grid.y; ++y) {
      for (unsigned x = 0; x < launch.grid.x; ++x) run_block(launch, {x, y, z}, thread);
    }
  }
}

}  // namespace llmtrain::emulator
