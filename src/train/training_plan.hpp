#pragma once
// Objects of a training run that its memory plan contains. They are made for any rank of any job, and planned without
// being allocated.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/arena.hpp"
#include "data/dataset.hpp"
#include "generate/generator.hpp"
#include "objectives/objective.hpp"
#include "optim/optimizer.hpp"
#include "params/reduction_groups.hpp"
#include "roles/model_set.hpp"
#include "train/config/config.hpp"
#include "train/evaluate.hpp"
#include "train/step_values.hpp"

namespace llmtrain {

/// Options of the deck that decide where the state lies.
ParamStoreOptions offload_options(const Config& config);

/// What the deck trains.
TrainedRule trained_rule(const Config& config);

/// Token ids of log.sample_prompts; an empty prompt starts like a document of the data.
std::vector<std::vector<int32_t>> encode_prompts(const Config& config, const Tokenizer* tokenizer);

/// Rank for which memory is planned.
struct RankPosition {
  int rank;
  int size;
  int node_size;  ///< ranks of a node that share memory, see ParamStoreOptions
};

/// Device memory of a step's statistics, cotangents and sums.
struct StepBuffers {
  BatchBuffers batch;
  TokenStatistics statistics;  ///< fp32 [N]
  TokenCotangents cotangents;  ///< fp32 [N]
  Tensor cotangent_scale;      ///< fp32 [1] of the step, with fp16
  StepSums sums;
};

struct TrainingPlan {
  /// The deck must be resolved: vocab_size and precision known.
  TrainingPlan(const Config& config, const Dataset& data, const RankPosition& position);

  ParamStore& params() { return models.at(Role::policy).params(); }
  const ParamStore& params() const { return models.at(Role::policy).params(); }
  Model& model() { return models.at(Role::policy).model(); }
  const Model& model() const { return models.at(Role::policy).model(); }

  /// Buffers of a step, which evaluations share.
  EvaluationBuffers evaluation_buffers() {
    return {buffers.batch, {buffers.statistics.logp, {}, {}, buffers.statistics.argmax}, buffers.sums.of_objective()};
  }

  std::shared_ptr<const Tokenizer> tokenizer;
  std::vector<std::vector<int32_t>> prompts;  ///< prompts of samples
  std::shared_ptr<const TokenFile> train_source;
  DataStream train;
  std::optional<DataStream> validation;
  ReductionGroups groups;
  int64_t total_steps;
  std::unique_ptr<Objective> objective;
  std::unique_ptr<Optimizer> optimizer;
  ModelSet models;
  Arena arena;
  StepBuffers buffers;
  std::optional<Generator> generator;  ///< set if samples are written
  int64_t copied_bytes = 0;            ///< of this rank's state in the copy for a save
  Tensor state_copy;                   ///< bytes [copied_bytes], if device memory is the host's
};

}  // namespace llmtrain
