#pragma once
// Blocks of a launch. Those of a host thread take turns, two at a time, unless LLMTRAIN_EMULATOR_ORDER is eager.

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace llmtrain::emulator {

/// Static shared memory of the running block, with arbitrary contents when the block starts; `key` is its variable's.
void* static_shared_memory(const void* key, size_t bytes);
/// Seed of the turns that a launch's blocks take; 0: one block after another.
uint64_t seed_of_turns();

}  // namespace llmtrain::emulator

/// See kernels/cuda/shared_memory.cuh.
#define LLMTRAIN_SHARED(type, name)                       \
  static constexpr char key_of_##name = 0;                \
  auto& name = *static_cast<std::type_identity_t<type>*>( \
      ::llmtrain::emulator::static_shared_memory(&key_of_##name, sizeof(std::type_identity_t<type>)))
