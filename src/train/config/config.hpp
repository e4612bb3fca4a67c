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
#include "models/model_config.hpp"
#include "optim/optimizer_config.hpp"
#include "optim/precision_config.hpp"
#include "optim/schedule_config.hpp"
#include "parallel/job/watchdog_config.hpp"
#include "parallel/parallel_config.hpp"
#include "params/memory_config.hpp"
#include "train/config/checkpoint_config.hpp"
#include "train/config/evaluation_config.hpp"
#include "train/config/log_config.hpp"
#include "train/config/model_path.hpp"
#include "train/config/run_config.hpp"
#include "train/divergence_config.hpp"

namespace llmtrain {

/// What model.path turned out to be. No keys.
struct ModelSource {
  std::string checkpoint;  ///< the folder of one or of a run: this checkpoint holds the weights
  int64_t tokens = 0;      ///< of that: rows of the embedding that are tokens
  std::string instead;     ///< the folder is gone, and this checkpoint of the run holds what is needed to go on
};

/// Everything a deck says.
struct Config {
  RunConfig run;
  ModelConfig model;
  DataConfig data;
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
  Provenance provenance;           ///< of every key; where() begins an error message about one
  std::vector<std::string> notes;  ///< what the user should know although it is no error, such as keys without effect

  void visit(DeckKeys& keys);
  /// Values that follow from the data and the device, once they are known: shown as automatic in the resolved deck.
  void set_vocab_size(int64_t size);
  void set_compute(PrecisionConfig::Compute compute);
  /// The best weights are wanted at the end, so each better evaluation is followed by a checkpoint.
  bool needs_best() const {
    return checkpoint.export_model == CheckpointConfig::Export::best || evaluation.load_best_at_end;
  }
};

/// What run.task = evaluate reads: data.validation alone where it is named, else data.train with its last part set
/// apart.
DataConfig evaluated_data(const DataConfig& data);

/// What is wrong with model.vocab_size = rows.
std::string too_few_rows(int64_t rows, int64_t vocabulary);

/// The file's text. UserError 66 when it cannot be read, 78 when it is too long for a deck.
std::string read_deck_file(const std::string& path);

/// Whether load_config also looks at the data, or at all files that the deck names. A model's config.json is always
/// read, but for the deck that a run was recorded with, which says all of it.
enum class DeckFiles : uint8_t { recorded, trust, examine_data, examine };

/// The resolved configuration of a deck. `deck_name` is its path, for messages and the name of the run; `overrides` are
/// arguments section.key=value. All errors are collected in one UserError. With `examine` those of data files are among
/// them, and a vocabulary that their headers tell is settled.
Config load_config(std::string_view deck_text, const std::string& deck_name,
                   std::span<const std::string> overrides = {}, DeckFiles files = DeckFiles::trust,
                   ModelFolders* folders = nullptr);

/// Keys, as "section.key: <value> there, <value> here", by which the resolved deck of a run asks for other results than
/// this configuration. Where the results lie and what is only shown on the way does not count, nor does what this
/// configuration leaves to be found out (the tokenizer's vocabulary, the device's precision). Without those of
/// max_steps and epochs when `length` is false.
/// Those of keys that name files, which may mean the same content, go to `named` where it is given.
std::vector<std::string> differences(const Config& config, std::string_view resolved_deck, const std::string& deck_name,
                                     bool length = true, std::vector<std::string>* named = nullptr);

/// How this configuration differs from the resolved deck that a run was begun with.
struct DeckChanges {
  std::vector<std::string> breaking;  ///< "key: <value> there, <value> here": the run's state would not fit
  std::vector<std::string> applied;   ///< the same: takes effect from here on
  /// The same, by key: breaking unless what the deck names is the same content as there.
  std::map<std::string, std::string> named;
};
DeckChanges changes_since(const Config& config, std::string_view resolved_deck, const std::string& deck_name);

/// The resolved deck: a deck that resolves to itself, with a comment on every key that says where its value comes from.
std::string write_deck(const Config& config);

/// What --help prints about the deck: all keys (empty topic), those of a section, or one section.key.
std::string help_text(std::string_view topic);

/// docs/deck.md
std::string deck_manual();

}  // namespace llmtrain
