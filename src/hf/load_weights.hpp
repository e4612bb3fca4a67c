#pragma once
// Weights of a Hugging Face folder -> a ParamStore. Each rank reads the bytes of the elements that it owns, on several
// threads, straight into its master weights: no rank ever holds the whole model, at ZeRO 0 too, where the shards are
// gathered after they were read.

#include <string>
#include <vector>

#include "hf/match_weights.hpp"
#include "params/param_store.hpp"

namespace llmtrain {

struct LoadReport {
  int64_t bytes = 0;   ///< read by all ranks
  double seconds = 0;  ///< of reading, the slowest rank's
  int64_t files = 0;
  std::vector<std::string> notes, warnings;  ///< of WeightMatch
};

/// Collective. Every parameter of the started store gets its value, exactly, and weights are published. `shape` is what
/// the store's units were made from.
LoadReport load_weights(const std::string& folder, const DecoderShape& shape, ParamStore& params,
                        Communicator& communicator, Stream& stream);

/// Without reading a weight: whether the folder holds what the model needs. For one rank.
void check_weights(const std::string& folder, const DecoderShape& shape, const std::vector<UnitSpec>& units);

/// "1.2 GB from 3 files in 0.41 s, 2.9 GB/s"
std::string load_text(const LoadReport& report);

}  // namespace llmtrain
