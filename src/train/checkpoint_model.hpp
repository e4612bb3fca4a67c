#pragma once
// A checkpoint as a model for evaluation or generation.

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "checkpoint/manifest.hpp"
#include "hf/config/config_json.hpp"
#include "models/lora_config.hpp"
#include "models/quantization_config.hpp"
#include "parallel/communicator.hpp"
#include "text/chat/chat_template.hpp"
#include "text/tokenizer.hpp"

namespace llmtrain {

class CheckpointModel {
 public:
  /// Resolves a path: the folder itself, the newest checkpoint of a run directory, or "" if it is neither. Verifies
  /// nothing.
  static std::string find(const std::string& folder);
  /// config.json and generation_config.json of the model that the run started from, as stored in the checkpoint.
  static std::map<std::string, std::string> texts(const std::string& folder);
  /// The chat templates of the run, as stored in the checkpoint; nothing if it did not train on conversations.
  static std::optional<ChatFiles> chat(const std::string& folder);

  /// Verifies every byte; UserError(bad_content). Extracts the tokenizer, if there is one.
  CheckpointModel(const std::string& folder, Communicator& communicator, std::unique_ptr<Tokenizer>& tokenizer);

  const HfConfig& config() const { return config_; }
  /// Adapters that the run trained.
  const std::optional<LoraConfig>& lora() const { return lora_; }
  /// Storage of the frozen model that they were trained with.
  const QuantizationConfig& quantization() const { return quantization_; }
  const Manifest& manifest() const { return manifest_; }
  const std::string& folder() const { return folder_; }
  /// Number of embedding rows that are tokens. (A published model has no padding rows.)
  int64_t tokens() const { return tokens_; }

 private:
  std::string folder_;
  Manifest manifest_;
  HfConfig config_;
  std::optional<LoraConfig> lora_;
  QuantizationConfig quantization_;
  int64_t tokens_ = 0;
};

}  // namespace llmtrain
