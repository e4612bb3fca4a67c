#pragma once
// Initial values of units as a function of (seed, slice name, element of the external tensor).

#include <cstdint>

#include "parallel/communicator.hpp"
#include "params/unit_state.hpp"

namespace llmtrain {

/// Fills the master of elements [begin, end); leaves the padding between tensors as it is.
void initialize_range(const UnitState& u, int64_t begin, int64_t end, const Tensor& master, uint64_t seed,
                      Stream& stream);
/// Initialises the weights of a frozen unit that this rank stores, in pieces of at most `piece` elements.
void initialize_frozen(const UnitState& u, uint64_t seed, int64_t piece, Stream& stream);
/// Does the same for a quantised unit, whose scales are those of whole slices. Collective.
void initialize_quantized(const UnitState& u, uint64_t seed, int64_t piece, Communicator& communicator, Stream& stream);

}  // namespace llmtrain
