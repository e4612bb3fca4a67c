#pragma once
// The folder of an adapter as PEFT writes and reads it: adapter_config.json and adapter_model.safetensors.

#include <string>
#include <vector>

#include "hf/adapters/adapter_config.hpp"
#include "hf/weights/load_weights.hpp"
#include "hf/weights/slice_writer.hpp"

namespace llmtrain {

/// Returns the text of adapter_config.json. Throws UserError(missing_input) with advice if the folder has none.
std::string read_adapter_config(const std::string& folder);

/// Gives the model the head of an adapter that scores. Returns true if its folder need not have that head.
bool take_head(const AdapterConfig& adapter, ModelConfig& model);
/// The same with the labels of the adapter's head, which its weights have; their names and their problem too, if the
/// program wrote them.
bool take_head(const AdapterConfig& adapter, const std::string& folder, ModelConfig& model);

/// The adapter that a folder has, and what it chooses in a model.
struct AdapterFolder {
  std::string folder;
  AdapterConfig config;
  LoraPart part;
  WeightIndex index;
  std::vector<std::string> warnings;

  /// Reads the headers and checks that every tensor is there and fits. For one rank. Throws UserError: missing_input,
  /// bad_content.
  static AdapterFolder open(const std::string& folder, const DecoderShape& shape);
};

/// Returns the part of the model that a configuration chooses, which was read from `place`. Makes modules of its
/// target_parameters, removes from it what matches nothing in the model, as PEFT ignores it, and adds one warning about
/// that. Throws UserError(bad_content) with all problems.
LoraPart choose_stored_adapters(AdapterConfig& config, const ModelConfig& model, const std::string& place,
                                std::vector<std::string>& warnings);

/// Finds the tensors of adapters, and of what is trained beside them, among those of the file. Throws
/// UserError(bad_content) that names all missing tensors, unused tensors, and wrong shapes and types at once.
WeightMatch match_adapter(const AdapterFolder& adapter, const DecoderShape& shape, const std::vector<UnitSpec>& units);

/// Collective. Sets the adapters, and what is trained beside them, in the started store of a model that is adapted as
/// the folder says; the other parameters are set by then or later. The caller calls publish_masters().
struct LoadedAdapter {
  LoadReport report;
  std::string base_hash;  ///< of the model that it was trained with; may be empty
};
LoadedAdapter load_adapter(const std::string& folder, const DecoderShape& shape, ParamStore& params,
                           Communicator& communicator, Stream& stream);

/// Facts that the written files have beside the tensors.
struct AdapterOutput {
  std::string folder;
  LoraConfig lora;
  std::string base;       ///< folder of the model; empty: none
  std::string base_hash;  ///< hash of its frozen tensors (LoadReport::hash)
  bool overwrite = true;  ///< files that are there are replaced
  /// The file of the adapters' start, if the frozen matrices lost it (LoraConfig::moves_base): the adapters are written
  /// for the model as it was before, with twice the rank, as A and -A's start, and B and its start, beside each other.
  std::string start = {};
};
/// In the metadata of adapter_model.safetensors.
inline constexpr const char* base_hash_key = "base_hash";
inline constexpr const char* labels_key = "labels";                        ///< JSON list of names
inline constexpr const char* problem_key = "problem";                      ///< as classify.problem
inline constexpr const char* base_quantization_key = "base_quantization";  ///< description_of the model's storage

/// Collective; rank 0 writes. The folder appears atomically. A request to stop waits: a run saves its state first.
void write_adapter(const AdapterOutput& output, const DecoderShape& shape, const std::vector<UnitSpec>& units,
                   const GatherWeights& gather, Communicator& communicator);

}  // namespace llmtrain
