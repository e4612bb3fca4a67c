#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/checkpoint_config.hpp"
#include "config/divergence_config.hpp"
#include "config/model_source.hpp"
#include "config/run_config.hpp"
#include "core/deck/deck.hpp"
#include "data/batch_config.hpp"
#include "data/curriculum_config.hpp"
#include "data/data_config.hpp"
#include "evaluation/evaluation_config.hpp"
#include "generate/generate_config.hpp"
#include "layers/memory_config.hpp"
#include "metrics/log_config.hpp"
#include "metrics/records.hpp"
#include "metrics/wandb_config.hpp"
#include "models/freeze_config.hpp"
#include "models/lora_config.hpp"
#include "models/model_config.hpp"
#include "models/quantization_config.hpp"
#include "objectives/classify_config.hpp"
#include "objectives/distill_config.hpp"
#include "objectives/dpo_config.hpp"
#include "objectives/grpo_config.hpp"
#include "objectives/objective_config.hpp"
#include "objectives/ppo_config.hpp"
#include "objectives/reward_model_config.hpp"
#include "optim/optimizer_config.hpp"
#include "optim/precision_config.hpp"
#include "optim/schedule_config.hpp"
#include "parallel/job/watchdog_config.hpp"
#include "parallel/parallel_config.hpp"
#include "report/dashboard/dashboard_config.hpp"
#include "rewards/reward_functions_config.hpp"
#include "rollout/rollout_config.hpp"
#include "text/chat/chat_config.hpp"

namespace llmtrain {

/// All values of a deck. load_config() makes them; what data and device decide later is in RunFacts.
struct Config {
  RunConfig run;
  ModelConfig model;
  LoraConfig lora;
  FreezeConfig freeze;
  QuantizationConfig quantization;
  ObjectiveConfig objective;
  DistillConfig distill;
  DpoConfig dpo;
  RewardModelConfig reward;
  ClassifyConfig classify;
  RewardFunctionsConfig rewards;
  RolloutConfig rollout;
  GenerateConfig generate;
  PpoConfig ppo;
  GrpoConfig grpo;
  DataConfig data;
  ChatConfig chat;
  BatchConfig batch;
  CurriculumConfig curriculum;
  OptimizerConfig optimizer;
  ScheduleConfig schedule;
  PrecisionConfig precision;
  ParallelConfig parallel;
  MemoryConfig memory;
  WatchdogConfig watchdog;
  DivergenceConfig divergence;
  CheckpointConfig checkpoint;
  EvaluationConfig evaluation;
  LogConfig log;
  WandbConfig wandb;
  DashboardConfig dashboard;

  ModelSource source;
  Provenance provenance;           ///< origin of every key; where() begins an error message about one
  std::vector<std::string> notes;  ///< notes for the user that are not errors, such as keys without effect

  void visit(DeckKeys& keys);
  /// Path of the tokenizer's files, which may be in a checkpoint where the folder of data.tokenizer is gone.
  const std::string& tokenizer_path() const {
    return source.tokenizer_from.empty() ? data.tokenizer : source.tokenizer_from;
  }
  /// Storage of the frozen matrices of a folder: as the deck says, else as in the folder.
  const QuantizationConfig& storage(const QuantizationConfig& of_folder) const {
    return quantization.active() ? quantization : of_folder;
  }
  /// True if the best weights are needed at the end, so that each better evaluation is followed by a checkpoint.
  bool needs_best() const {
    return checkpoint.export_model == CheckpointConfig::Export::best || evaluation.load_best_at_end;
  }
};

/// Returns the error of model.vocab_size = rows, or "".
std::string too_few_rows(int64_t rows, int64_t vocabulary);

/// Reads the deck's text. UserError 66 when it cannot be read, 78 when it is too long for a deck.
std::string read_deck_file(const std::string& path);

/// The resolved deck: a deck that resolves to itself, with a comment on every key that says where its value comes from.
std::string write_deck(const Config& config);

/// The keys with an effect and their values, in order, for sinks that show them.
std::vector<DeckSetting> deck_settings(const Config& config);

/// Help on the deck: all keys (empty topic), those of a section, or one section.key.
std::string help_text(std::string_view topic);

/// Text of docs/deck.md.
std::string deck_manual();

}  // namespace llmtrain
