#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "core/named_enum.hpp"
#include "data/data_config.hpp"
#include "models/model_config.hpp"
#include "optim/optimizer_config.hpp"
#include "parallel/parallel_config.hpp"

namespace llmtrain {

class DeckKeys;

/// [run]
struct RunConfig {
  enum class Task : uint8_t { pretrain };

  std::string name;  ///< of the run directory; the deck's file name without .ini when not given
  Task task = Task::pretrain;
  std::string output = "runs";
  int64_t seed = 42;
  bool overwrite = false;
  int64_t max_steps = 0;  ///< 0: given by epochs
  double epochs = 0;      ///< 0: given by max_steps

  void visit(DeckKeys& keys);
};

/// [evaluation]; every_steps = 0 means never.
struct EvaluationConfig {
  int64_t every_steps = 500;
  bool at_start = false;
  bool at_end = true;
  int64_t batches = 0;                  ///< of batch.global sequences each; 0 = all
  int64_t early_stopping_patience = 0;  ///< evaluations without a better value; 0 = off
  double early_stopping_threshold = 0;  ///< better means lower by more than this

  void visit(DeckKeys& keys);
};

/// [log]; every ..._steps = 0 means never.
struct LogConfig {
  enum class Sink : uint8_t { hdf5, jsonl };

  int64_t every_steps = 10;
  std::vector<Sink> sinks = {Sink::hdf5, Sink::jsonl};
  int64_t samples_every_steps = 0;
  std::vector<std::string> sample_prompts;  ///< empty: one sample from the start of a document
  int64_t sample_length = 256;              ///< new tokens
  double sample_temperature = 1;            ///< 0 = greedy
  int64_t sample_top_k = 0;                 ///< 0 = off
  double sample_top_p = 1;                  ///< 1 = off
  int64_t parameter_hash_every_steps = 0;

  void visit(DeckKeys& keys);
};

template <>
inline constexpr auto enum_names<RunConfig::Task> = name_list("pretrain");
template <>
inline constexpr auto enum_names<LogConfig::Sink> = name_list("hdf5", "jsonl");

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
  EvaluationConfig evaluation;
  LogConfig log;

  void visit(DeckKeys& keys);
};

}  // namespace llmtrain
