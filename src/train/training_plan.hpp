#pragma once
// Objects of a training run that its memory plan contains. They are made for any rank of any job, and planned without
// being allocated.

#include <memory>
#include <optional>
#include <vector>

#include "core/arena.hpp"
#include "data/dataset.hpp"
#include "evaluation/evaluate.hpp"
#include "evaluation/evaluation_scores.hpp"
#include "generate/generator.hpp"
#include "layers/router_losses.hpp"
#include "layers/sharing/shared_rows.hpp"
#include "objectives/objective.hpp"
#include "optim/optimizer.hpp"
#include "params/reduction/reduction_groups.hpp"
#include "roles/model_set.hpp"
#include "roles/reference.hpp"
#include "roles/teacher.hpp"
#include "train/step_values.hpp"

namespace llmtrain {

/// Device memory of a step's statistics, cotangents and sums.
struct StepBuffers {
  BatchBuffers batch;
  TokenStatistics statistics;  ///< fp32 [N]
  TokenCotangents cotangents;  ///< fp32 [N]
  Tensor cotangent_scale;      ///< fp32 [1] of the step, with fp16
  StepSums sums;
  Tensor documents;  ///< fp64 [segments], for objectives over documents
};

/// Parts of a training run that its task chooses.
struct TrainingParts {
  std::shared_ptr<const Tokenizer> tokenizer;
  std::vector<std::vector<int32_t>> prompts;  ///< prompts of samples; none: no samples are written
  std::shared_ptr<const TokenFile> train_source;
  DataStream train;
  std::optional<DataStream> validation;
  ReductionGroups groups;
  RowShares rows;
  int64_t total_steps;
  std::unique_ptr<Objective> objective;
  std::unique_ptr<Objective> evaluator = {};  ///< of evaluations, if it is another one; its metrics are the first ones
  std::unique_ptr<Optimizer> optimizer;
  /// Log-probabilities under the reference, if they are known already.
  std::optional<ReferenceValues> reference_values = {};
  std::optional<TeacherOptions> teacher_options = {};  ///< set if the objective needs a teacher
  std::unique_ptr<BatchSource> source = {};            ///< of the batches, if these are not the samples of `train`
  EvaluationScores scores = {};
  std::optional<RouterLosses> router = {};  ///< set if the policy has experts

  BatchSource& batches() { return source ? *source : train; }
  const BatchSource& batches() const { return const_cast<TrainingParts*>(this)->batches(); }
};

/// Choices of the deck that change the memory beside the model's.
struct PlanOptions {
  bool counts_correct = false;   ///< evaluations count the tokens that the model ranks first
  bool compares_losses = false;  ///< the host compares each loss with earlier ones before it allows an update
  int ranks = 1;
  int64_t copy_bytes = 0;  ///< maximum memory for a copy of the state, from which a thread saves it
  ReferenceSyncOptions sync = {};
};

struct TrainingPlan : TrainingParts {
  /// `roles`: the policy, and a reference model of its own if there is one.
  TrainingPlan(TrainingParts parts, std::vector<RoleSpec> roles, const PlanOptions& options);

  ParamStore& params() { return models.at(Role::policy).params(); }
  const ParamStore& params() const { return models.at(Role::policy).params(); }
  Model& model() { return models.at(Role::policy).model(); }
  const Model& model() const { return models.at(Role::policy).model(); }

  int64_t steps_per_epoch() const { return batches().steps_per_epoch(); }
  /// Objective that evaluations measure.
  Objective& evaluation_objective() { return evaluator ? *evaluator : *objective; }
  /// Buffers of a step, which evaluations share.
  EvaluationBuffers evaluation_buffers() {
    return {buffers.batch,
            {buffers.statistics.logp,
             {},
             evaluation_objective().needs().shows_entropy ? buffers.statistics.entropy : Tensor{},
             counts_correct ? buffers.statistics.argmax : Tensor{},
             {},
             {},
             evaluation_objective().needs().mean_logits ? buffers.statistics.mean_logit : Tensor{}},
            buffers.sums.of_objective(),
            reference ? &*reference : nullptr,
            buffers.documents};
  }

  LikelihoodBuffers likelihood_buffers() { return {buffers.batch, buffers.statistics.logp, buffers.statistics.argmax}; }

  ModelSet models;
  Arena arena;
  bool counts_correct = false;  ///< evaluations count the tokens that the model ranks first
  StepBuffers buffers;
  std::optional<Reference> reference;  ///< set if the objective needs one
  std::optional<ReferenceSync> sync;   ///< set if the reference follows the policy
  std::optional<Teacher> teacher;      ///< set if the objective needs one
  std::optional<Generator> generator;  ///< set if samples are written
  int64_t copied_bytes = 0;            ///< of this rank's state in the copy for a save
  Tensor state_copy;                   ///< bytes [copied_bytes], if device memory is the host's

 private:
  void plan_buffers(const PassPlan& passes, const PlanOptions& options);
};

}  // namespace llmtrain
