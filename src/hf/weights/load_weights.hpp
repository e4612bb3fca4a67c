#pragma once
// Reads the weights of a Hugging Face folder into a ParamStore. Each rank reads the bytes of the elements that it owns,
// on several threads, directly into its master or frozen weights: no rank ever holds the whole model, not even at ZeRO
// 0, where the shards are gathered after reading.

#include <map>
#include <set>
#include <string>
#include <vector>

#include "hf/weights/match_weights.hpp"
#include "hf/weights/stored_slice.hpp"
#include "params/param_store.hpp"

namespace llmtrain {

using NameSet = std::set<std::string, std::less<>>;

struct LoadReport {
  int64_t bytes = 0;   ///< bytes that all ranks read
  double seconds = 0;  ///< time of the slowest rank
  int64_t files = 0;
  int64_t file_bytes = 0;                    ///< size of the files
  std::string hash;                          ///< 16 hex digits, see load_weights
  std::vector<std::string> notes, warnings;  ///< from WeightMatch
};

/// Part of LoadReport::hash: the sum over elements of a hash of their position in the tensor `key` (hash_key of its
/// name) and their value, so that it does not depend on how a tensor is divided.
uint64_t hash_elements(uint64_t key, int64_t first, const float* values, int64_t count);
uint64_t hash_key(const std::string& name);

/// Products that are taken from matrices as they are read, by the names of these.
using SubtractedProducts = std::map<std::string, SubtractedProduct, std::less<>>;

struct LoadOptions {
  /// If given, the report has a hash of all tensors that are not among these names: of their values in fp32, whatever
  /// the number of ranks and files.
  const NameSet* trained = nullptr;
  bool publish = true;  ///< false: the caller calls publish_masters()
  const SubtractedProducts* minus = nullptr;
  bool critic = false;  ///< sets the parameters of a critic, whose names in files lack critic_prefix; false: the others
};

/// Collective. Sets every parameter of the started store but those of adapters, and of a critic, exactly, or rounded if
/// it is frozen, and publishes the weights. `shape` is the one that the store's units were made from. Throws
/// UserError(bad_content) for a value that is not finite.
LoadReport load_weights(const std::string& folder, const DecoderShape& shape, ParamStore& params,
                        Communicator& communicator, Stream& stream, const LoadOptions& options = {});

/// Collective. Does the same for the slices of a match; takes its notes and warnings.
LoadReport load_match(const WeightIndex& index, WeightMatch& match, ParamStore& params, Communicator& communicator,
                      Stream& stream, const LoadOptions& options);

/// Checks, without reading a weight, that the folder holds what the model needs. For one rank.
void check_weights(const std::string& folder, const DecoderShape& shape, const std::vector<UnitSpec>& units);

/// Returns, for example, "1.2 GB from 3 files in 0.41 s, 2.9 GB/s".
std::string load_text(const LoadReport& report);

}  // namespace llmtrain
