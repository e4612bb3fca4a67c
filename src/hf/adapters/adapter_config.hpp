#pragma once
// adapter_config.json of PEFT. A setting that changes the mathematics and is not supported is an error that names it.
// Keys that PEFT does not have give one warning.

#include <string>
#include <string_view>

#include "models/lora.hpp"

namespace llmtrain {

/// Begins the names in adapter_model.safetensors.
inline constexpr std::string_view adapter_prefix = "base_model.model.";
inline constexpr const char* adapter_config_name = "adapter_config.json";
inline constexpr const char* adapter_weights_name = "adapter_model.safetensors";

/// Name in the model of a tensor of adapter_model.safetensors, since PEFT's files name the same parameter in several
/// ways. Empty: a copy of what the model has.
std::string adapter_name_in_model(const std::string& stored);

struct AdapterConfig {
  LoraConfig lora;                             ///< without path
  std::vector<std::string> target_parameters;  ///< ends of names, see name_expert_modules()
  std::string base;                            ///< base_model_name_or_path; may be empty
  /// Task type SEQ_CLS or TOKEN_CLS: of a model that scores, whose head it has.
  ModelConfig::Head head = ModelConfig::Head::language;
  bool scores() const { return head != ModelConfig::Head::language; }
  std::vector<std::string> warnings;
};

/// `place` is the file's path, for messages. Throws UserError(bad_content) with all problems.
AdapterConfig parse_adapter_config(std::string_view text, const std::string& place);

/// Returns the text for an adapter of this model, `part` being what its configuration chooses there. Names of modules
/// are written so that PEFT chooses the same.
std::string write_adapter_config(const AdapterConfig& config, const LoraPart& part, const ModelConfig& model);

}  // namespace llmtrain
