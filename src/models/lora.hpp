#pragma once
// The rule of [lora]: which modules are adapted and which parameters of the model are trained beside the adapters, as
// PEFT chooses them by the names of the model's files.

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "layers/adapter.hpp"
#include "models/decoder.hpp"
#include "models/lora_config.hpp"

namespace llmtrain {

struct LoraPart {
  std::map<std::string, AdapterShape, std::less<>> modules;  ///< adapted ones, by name
  std::set<std::string, std::less<>> trained;                ///< names of the model's own tensors that are trained
  std::vector<std::string>
      targets;                    ///< names from which PEFT's target_modules chooses the same with the same other keys
  bool trains_tied_head = false;  ///< the trained embedding is the head's matrix too
  bool unties_head = false;       ///< embedding and head are one matrix in the model and two here
  std::vector<std::pair<std::string, std::string>> errors;  ///< key of [lora], and what is wrong with it
  std::vector<std::pair<std::string, std::string>> notes;
};

/// Sizes of the model do not matter, and may be unknown.
LoraPart choose_adapters(const LoraConfig& config, const ModelConfig& model);

/// Removes from a configuration that was stored with an adapter what matches nothing in this model: names of modules,
/// patterns and layers, all of which PEFT ignores as long as it finds a target. Returns what was removed, by key.
std::vector<std::string> remove_unmatched(LoraConfig& config, const ModelConfig& model);

/// Lets the shape of a model read the tables that lie beside the adapter of a configuration.
void use_saved_tables(DecoderShape& shape, const LoraConfig& config);

/// Sets the rules of a configuration without errors: what is adapted, what is trained beside the adapters, and whether
/// a tied head becomes a matrix of its own.
void adapt(DecoderShape& shape, const LoraConfig& config);

}  // namespace llmtrain
