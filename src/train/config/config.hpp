#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/deck/deck.hpp"
#include "core/deck/named_enum.hpp"
#include "data/data_config.hpp"
#include "models/model_config.hpp"
#include "optim/optimizer_config.hpp"
#include "parallel/parallel_config.hpp"
#include "train/config/checkpoint_config.hpp"
#include "train/config/model_path.hpp"
#include "train/divergence.hpp"

namespace llmtrain {

struct Config;

/// [run]
struct RunConfig {
  enum class Task : uint8_t { pretrain, evaluate, tokenizer };

  std::string name;  ///< name of the run directory; default: the deck's file name without .ini
  Task task = Task::pretrain;
  std::string output = "runs";
  int64_t seed = 42;
  bool overwrite = false;
  int64_t max_steps = 0;  ///< 0: epochs sets the length
  double epochs = 0;      ///< 0: max_steps sets the length
  static constexpr int64_t limit_of_job = -1;
  int64_t time_limit = limit_of_job;  ///< seconds; limit_of_job: Slurm's limit; 0: none

  void visit(DeckKeys& keys);
  void resolve(DeckLoader& deck, std::string_view deck_name);
};

/// [evaluation]; every_steps = 0 means never.
struct EvaluationConfig {
  int64_t every_steps = 500;
  bool at_start = false;
  bool at_end = true;
  int64_t batches = 0;                  ///< batches of batch.global sequences; 0 = all
  int64_t early_stopping_patience = 0;  ///< evaluations without a better value; 0 = off
  double early_stopping_threshold = 0;  ///< minimum improvement that counts as better
  bool load_best_at_end = false;
  int64_t stride = 0;  ///< tokens between windows of task = evaluate; 0 = no overlap

  void visit(DeckKeys& keys);
  void resolve(DeckLoader& deck, const Config& config) const;  ///< checks only
};

/// [log]; a value 0 of an ..._steps key means never.
struct LogConfig {
  enum class Sink : uint8_t { hdf5, jsonl };

  int64_t every_steps = 10;
  std::vector<Sink> sinks = {Sink::hdf5, Sink::jsonl};
  int64_t samples_every_steps = 0;
  std::vector<std::string> sample_prompts;  ///< empty: one sample that starts like a document of the data
  int64_t sample_length = 256;              ///< new tokens
  double sample_temperature = 1;            ///< 0 = greedy
  int64_t sample_top_k = 0;                 ///< 0 = off
  double sample_top_p = 1;                  ///< 1 = off
  int64_t parameter_hash_every_steps = 0;
  int64_t profile = 0;  ///< number of steps to profile

  void visit(DeckKeys& keys);
  void resolve(DeckLoader& deck) const;  ///< checks only
};

template <>
inline constexpr auto enum_names<RunConfig::Task> = name_list("pretrain", "evaluate", "tokenizer");
template <>
inline constexpr auto enum_names<LogConfig::Sink> = name_list("hdf5", "jsonl");

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
  Provenance provenance;           ///< origin of every key; where() begins an error message about one
  std::vector<std::string> notes;  ///< notes for the user that are not errors, such as keys without effect

  void visit(DeckKeys& keys);
  /// Records values that follow from the data and the device, once they are known: the resolved deck shows them as
  /// automatic.
  void set_vocab_size(int64_t size);
  void set_compute(PrecisionConfig::Compute compute);
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
