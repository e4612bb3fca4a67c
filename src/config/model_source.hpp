#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "models/lora_config.hpp"
#include "models/model_config.hpp"
#include "models/quantization_config.hpp"

namespace llmtrain {

/// Model of another role, in a folder of its own.
struct RoleFolder {
  ModelConfig model;
  QuantizationConfig quantization;  ///< of its matrices
  std::string tokenizer_path;       ///< the folder if it has a tokenizer; else empty
};

/// Result of the examination of model.path. It has no keys.
struct ModelSource {
  std::string checkpoint;      ///< checkpoint of the weights, if the folder is one or is a run
  int64_t tokens = 0;          ///< number of its embedding rows that are tokens
  int64_t rows = 0;            ///< embedding rows in its files if data.add_tokens adds to them, otherwise 0
  std::string tokenizer_from;  ///< checkpoint to read the tokenizer from if the folder of data.tokenizer is gone
  bool new_head = false;       ///< its files need not have the model's head, see DecoderShape
  std::optional<LoraConfig> lora = {};       ///< adapters of the checkpoint
  QuantizationConfig quantization = {};      ///< of the folder's matrices, or the checkpoint's run
  std::optional<RoleFolder> reference = {};  ///< of dpo.reference, if that is a folder
  std::optional<RoleFolder> reward = {};     ///< of ppo.reward_model, or model:DIR in rewards.functions
  std::optional<RoleFolder> critic = {};     ///< of ppo.value_model
  std::optional<RoleFolder> teacher = {};    ///< of distill.teacher
  std::string fallback_checkpoint;  ///< of the run, with what resuming needs of the folder; empty unless that is gone
};

}  // namespace llmtrain
