#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/deck/deck.hpp"
#include "data/batch_config.hpp"
#include "data/data_config.hpp"
#include "layers/memory_config.hpp"
#include "metrics/log_config.hpp"
#include "models/freeze_config.hpp"
#include "models/lora_config.hpp"
#include "models/model_config.hpp"
#include "optim/optimizer_config.hpp"
#include "optim/precision_config.hpp"
#include "optim/schedule_config.hpp"
#include "parallel/job/watchdog_config.hpp"
#include "parallel/parallel_config.hpp"
#include "text/chat/chat_config.hpp"
#include "train/config/checkpoint_config.hpp"
#include "train/config/divergence_config.hpp"
#include "train/config/evaluation_config.hpp"
#include "train/config/model_path.hpp"
#include "train/config/run_config.hpp"

namespace llmtrain {

/// Result of the examination of model.path. It has no keys.
struct ModelSource {
  std::string checkpoint;  ///< checkpoint of the weights, if the folder is one or is a run
  int64_t tokens = 0;      ///< number of its embedding rows that are tokens
  std::string instead;     ///< set if the folder is gone: a checkpoint of the run that stores what resuming needs
};

/// All values of a deck.
struct Config {
  RunConfig run;
  ModelConfig model;
  LoraConfig lora;
  FreezeConfig freeze;
  DataConfig data;
  ChatConfig chat;
  BatchConfig batch;
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

  ModelSource source;
  Provenance provenance;           ///< origin of every key; where() begins an error message about one
  std::vector<std::string> notes;  ///< notes for the user that are not errors, such as keys without effect

  void visit(DeckKeys& keys);
  /// Records values that follow from the data and the device, once they are known: the resolved deck shows them as
  /// automatic.
  void set_vocab_size(int64_t size);
  void set_compute(PrecisionConfig::Compute compute);
  /// Sets every_steps of evaluations and checkpoints where the deck gives every_epochs.
  void set_epoch_intervals(int64_t steps_per_epoch);
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

/// Differences in results between the resolved deck of a run and this configuration, as "section.key: <value> there,
/// <value> here". Keys for output folders and display are ignored, as are keys that this configuration has yet to
/// determine (the tokenizer's vocabulary, the device's precision), and max_steps and epochs when `length` is false.
/// Keys that name files, which may have the same content, go to `named` if it is given.
std::vector<std::string> differences(const Config& config, std::string_view resolved_deck, const std::string& deck_name,
                                     bool length = true, std::vector<std::string>* named = nullptr);

/// Differences between this configuration and the resolved deck that a run was started from.
struct DeckChanges {
  std::vector<std::string> breaking;  ///< "key: <value> there, <value> here": the saved state would not fit
  std::vector<std::string> applied;   ///< the same: the change takes effect from here on
  /// The same, by key: breaking unless both names have the same content.
  std::map<std::string, std::string> named;
};
DeckChanges changes_since(const Config& config, std::string_view resolved_deck, const std::string& deck_name);

/// The resolved deck: a deck that resolves to itself, with a comment on every key that says where its value comes from.
std::string write_deck(const Config& config);

/// Help on the deck: all keys (empty topic), those of a section, or one section.key.
std::string help_text(std::string_view topic);

/// Text of docs/deck.md.
std::string deck_manual();

}  // namespace llmtrain
