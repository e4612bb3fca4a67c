#pragma once
// Static shared memory of a block.

#include <type_traits>

#include "kernels/cuda/launch.cuh"
#if !defined(__CUDACC__)
#include "emulator/blocks.hpp"
#endif

/// Declares a variable in static shared memory, whose contents are arbitrary when a block starts. The type can be that
/// of an array.
#if defined(__CUDACC__)
#define LLMTRAIN_SHARED(type, name) __shared__ std::type_identity_t<type> name
#else
#define LLMTRAIN_SHARED(type, name)                       \
  static constexpr char key_of_##name = 0;                \
  auto& name = *static_cast<std::type_identity_t<type>*>( \
      ::llmtrain::emulator::static_shared_memory(&key_of_##name, sizeof(std::type_identity_t<type>)))
#endif
