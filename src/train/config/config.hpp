#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/deck/deck.hpp"
#include "data/batch_config.hpp"
#include "data/curriculum_config.hpp"
#include "data/data_config.hpp"
#include "generate/generate_config.hpp"
#include "generate/rollout_config.hpp"
#include "layers/memory_config.hpp"
#include "metrics/log_config.hpp"
#include "metrics/records.hpp"
#include "metrics/wandb_config.hpp"
#include "models/freeze_config.hpp"
#include "models/lora_config.hpp"
#include "models/model_config.hpp"
#include "models/quantization_config.hpp"
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
#include "rewards/reward_functions_config.hpp"
#include "text/chat/chat_config.hpp"
#include "train/config/checkpoint_config.hpp"
#include "train/config/dashboard_config.hpp"
#include "train/config/divergence_config.hpp"
#include "train/config/evaluation_config.hpp"
#include "train/config/model_path.hpp"
#include "train/config/run_config.hpp"

namespace llmtrain {

/// All values of a deck.
struct Config {
  RunConfig run;
  ModelConfig model;
  LoraConfig lora;
  FreezeConfig freeze;
  QuantizationConfig quantization;
  ObjectiveConfig objective;
  DpoConfig dpo;
  RewardModelConfig reward;
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
  /// Adds a note unless it is empty.
  void add_note(std::string note);
  /// Records values that follow from the data and the device, once they are known: the resolved deck shows them as
  /// automatic.
  void set_vocab_size(int64_t size);
  void set_compute(PrecisionConfig::Compute compute);
  /// Sets every_steps of evaluations and checkpoints where the deck gives every_epochs.
  void set_epoch_intervals(int64_t steps_per_epoch);
  /// Storage of the frozen matrices of a folder: as the deck says, else as in the folder.
  const QuantizationConfig& storage(const QuantizationConfig& of_folder) const {
    return quantization.active() ? quantization : of_folder;
  }
  /// True if the best weights are needed at the end, so that each better evaluation is followed by a checkpoint.
  bool needs_best() const {
    return checkpoint.export_model == CheckpointConfig::Export::best || evaluation.load_best_at_end;
  }
};

/// Data of run.task = evaluate: data.validation alone if it is given, else data.train with its held-out part.
DataConfig evaluated_data(const DataConfig& data);

/// Returns the error of model.vocab_size = rows, or "".
std::string too_few_rows(int64_t rows, int64_t vocabulary);

/// Reads the deck's text. UserError 66 when it cannot be read, 78 when it is too long for a deck.
std::string read_deck_file(const std::string& path);

/// Extent of load_config's checks: the deck alone, also the data, or all files that the deck names. A model's
/// config.json is always read, except for a recorded deck, which contains it.
enum class DeckFiles : uint8_t { recorded, trust, examine_data, examine };

/// Resolves the configuration of a deck. `deck_name` is its path, for messages and the name of the run; `overrides` are
/// arguments section.key=value. All errors are collected in one UserError. With `examine` they include errors of data
/// files, and the vocabulary is set from the headers of token files.
Config load_config(std::string_view deck_text, const std::string& deck_name,
                   std::span<const std::string> overrides = {}, DeckFiles files = DeckFiles::trust,
                   ModelFolders* folders = nullptr);

/// A key whose effect differs between the resolved deck of an earlier run ("there") and a configuration ("here").
struct DeckDifference {
  enum class Effect : uint8_t {
    breaks,       ///< the saved state would not fit
    applies,      ///< the change takes effect from here on
    names_files,  ///< breaks unless the files of both names have the same content
  };

  std::string key;   ///< "section.key"
  std::string text;  ///< "section.key: <value> there, <value> here"
  Effect effect;

  bool is_length() const { return key == "run.max_steps" || key == "run.epochs"; }
};

/// Compares a configuration with the resolved deck of an earlier run. Keys for output folders and display are ignored,
/// as are keys that this configuration has yet to determine (the tokenizer's vocabulary, the device's precision).
std::vector<DeckDifference> differences(const Config& config, std::string_view resolved_deck,
                                        const std::string& deck_name);

/// Compares the deck of a job with a resolved deck, as differences() does.
using DeckComparison =
    std::function<std::vector<DeckDifference>(std::string_view resolved_deck, const std::string& deck_name)>;
/// The configuration must outlive the result.
DeckComparison comparison_with(const Config& config);

/// The resolved deck: a deck that resolves to itself, with a comment on every key that says where its value comes from.
std::string write_deck(const Config& config);

/// The keys with an effect and their values, in order, for sinks that show them.
std::vector<DeckSetting> deck_settings(const Config& config);

/// Help on the deck: all keys (empty topic), those of a section, or one section.key.
std::string help_text(std::string_view topic);

/// Text of docs/deck.md.
std::string deck_manual();

}  // namespace llmtrain
