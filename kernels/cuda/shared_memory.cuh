#pragma once
// Static shared memory of a block.

#include <type_traits>

#include "kernels/cuda/launch.cuh"

/// Declares a variable in static shared memory, whose contents are arbitrary when a block starts. The type can be that
/// of an array. The emulator has a definition of its own.
#ifndef LLMTRAIN_SHARED
#define LLMTRAIN_SHARED(type, name) __shared__ std::type_identity_t<type> name
#endif
